// A lookup table prepared for quantization: from a position on the grid 0..g to the interval of table values around it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "thc/lookup_table.h"

namespace thc {

/// Interval z lies between table values z and z + 1. Table values are integers, so floor(position) decides z.
class IntervalTable {
 public:
  /// Grids this small have a byte for every point in cells(), so that the cell of a position is its interval.
  static constexpr std::size_t kByteGrid = 64;
  static constexpr std::size_t kCells = 128;

  explicit IntervalTable(const LookupTable& table)
      : granularity_(static_cast<float>(table.granularity())), interval_of_(table.granularity() + std::size_t{1}) {
    const auto values = table.values();
    const std::size_t intervals = table.levels() - 1;
    for (std::size_t z = 0; z <= intervals; ++z) {
      value_[z] = static_cast<float>(values[z]);
    }
    upper_bound_.fill(std::numeric_limits<float>::infinity());
    for (std::size_t z = 0; z < intervals; ++z) {
      inverse_gap_[z] = 0x1p16F / (value_[z + 1] - value_[z]);
      upper_bound_[z] = z + 1 < intervals ? value_[z + 1] : upper_bound_[z];
      for (std::size_t i = values[z]; i < values[z + 1]; ++i) {
        interval_of_[i] = static_cast<std::int32_t>(z);
      }
    }
    interval_of_.back() = static_cast<std::int32_t>(intervals - 1);  // g itself ends the last interval
    is_identity_ = intervals == table.granularity();
    fill_cells();
    fill_words();
  }

  float granularity() const noexcept { return granularity_; }
  const float* values() const noexcept { return value_.data(); }
  /// 2^16 / (values()[z + 1] - values()[z]): fractions of intervals are compared with 16 random bits.
  const float* inverse_gaps() const noexcept { return inverse_gap_.data(); }
  /// values()[z + 1], where interval z + 1 begins; infinity behind the last interval.
  const float* upper_bounds() const noexcept { return upper_bound_.data(); }
  /// Interval of each integer 0..g.
  const std::int32_t* interval_of() const noexcept { return interval_of_.data(); }
  /// values()[z] in the lower 16 bits, the gap to values()[z + 1] above.
  const std::int32_t* interval_words() const noexcept { return interval_words_.data(); }
  /// Whether all that is to know of a position fits a word.
  bool has_points() const noexcept { return granularity_ <= kPointGranularity; }
  /// Interval z of each integer 0..g in the lower 8 bits, values()[z] in the next 16, the gap above; if has_points().
  const std::int32_t* points() const noexcept { return points_.data(); }
  /// Whether values()[z] is z.
  bool is_identity() const noexcept { return is_identity_; }

  /// Whether every cell, 2^cell_shift() points of the grid, lies in at most two intervals.
  bool has_cells() const noexcept { return has_cells_; }
  /// Whether cells are single points of a grid of kByteGrid points.
  bool fits_bytes() const noexcept { return interval_of_.size() <= kByteGrid; }
  unsigned cell_shift() const noexcept { return cell_shift_; }
  /// Interval of the first point of every cell, kCells elements; only if has_cells().
  const std::uint8_t* cells() const noexcept { return cells_.data(); }

 private:
  void fill_cells() {
    while ((interval_of_.size() - 1) >> cell_shift_ >= kCells) {
      ++cell_shift_;
    }
    const std::size_t cell = std::size_t{1} << cell_shift_;
    has_cells_ = true;
    for (std::size_t first = 0; first < interval_of_.size(); first += cell) {
      const std::int32_t last_interval = interval_of_[std::min(first + cell, interval_of_.size()) - 1];
      has_cells_ = has_cells_ && last_interval - interval_of_[first] <= 1;
      cells_[first >> cell_shift_] = static_cast<std::uint8_t>(interval_of_[first]);
    }
  }

  void fill_words() {
    for (std::size_t z = 0; z + 1 < value_.size() && value_[z + 1] > value_[z]; ++z) {
      const auto gap = static_cast<std::uint32_t>(value_[z + 1] - value_[z]);
      interval_words_[z] = static_cast<std::int32_t>(static_cast<std::uint32_t>(value_[z]) | gap << 16);
    }
    for (std::size_t i = 0; has_points() && i < interval_of_.size(); ++i) {
      const auto interval = static_cast<std::uint32_t>(interval_of_[i]);
      points_[i] = static_cast<std::int32_t>(interval | static_cast<std::uint32_t>(interval_words_[interval]) << 8);
    }
  }

  static constexpr float kPointGranularity = 255;
  float granularity_;
  std::array<float, 256> value_{};
  std::array<float, 256> inverse_gap_{};
  std::array<float, 256> upper_bound_{};
  std::vector<std::int32_t> interval_of_;
  std::array<std::int32_t, 256> interval_words_{};
  std::array<std::int32_t, 256> points_{};
  std::array<std::uint8_t, kCells> cells_{};
  unsigned cell_shift_ = 0;
  bool has_cells_ = false;
  bool is_identity_ = false;
};

}  // namespace thc
