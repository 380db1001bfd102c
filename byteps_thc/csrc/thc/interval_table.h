// A lookup table prepared for quantization: from a position on the grid 0..g to the interval of table values around it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "thc/lookup_table.h"

namespace thc {

/// Interval z lies between table values z and z + 1. Table values are integers, so floor(position) decides z.
class IntervalTable {
 public:
  /// Tables of up to 16 values on a grid this small fit vector registers.
  static constexpr std::size_t kRegisterValues = 16;
  static constexpr std::size_t kRegisterGrid = 128;
  /// Grids this small fit one register of bytes.
  static constexpr std::size_t kByteGrid = 64;

  explicit IntervalTable(const LookupTable& table)
      : granularity_(static_cast<float>(table.granularity())), interval_of_(table.granularity() + std::size_t{1}) {
    const auto values = table.values();
    const std::size_t intervals = table.levels() - 1;
    for (std::size_t z = 0; z <= intervals; ++z) {
      value_[z] = static_cast<float>(values[z]);
    }
    for (std::size_t z = 0; z < intervals; ++z) {
      inverse_gap_[z] = 0x1p16F / (value_[z + 1] - value_[z]);
      for (std::size_t i = values[z]; i < values[z + 1]; ++i) {
        interval_of_[i] = static_cast<std::int32_t>(z);
      }
    }
    interval_of_.back() = static_cast<std::int32_t>(intervals - 1);  // g itself ends the last interval
    fits_registers_ = values.size() <= kRegisterValues && interval_of_.size() <= kRegisterGrid;
    for (std::size_t i = 0; fits_registers_ && i < interval_of_.size(); ++i) {
      nibbles_[i / 8] |= static_cast<std::uint32_t>(interval_of_[i]) << (4 * (i % 8));
    }
    for (std::size_t i = 0; fits_bytes() && i < interval_of_.size(); ++i) {
      bytes_[i] = static_cast<std::uint8_t>(interval_of_[i]);
    }
  }

  float granularity() const noexcept { return granularity_; }
  const float* values() const noexcept { return value_.data(); }
  /// 2^16 / (values()[z + 1] - values()[z]): fractions of intervals are compared with 16 random bits.
  const float* inverse_gaps() const noexcept { return inverse_gap_.data(); }
  /// Interval of each integer 0..g.
  const std::int32_t* interval_of() const noexcept { return interval_of_.data(); }
  bool fits_registers() const noexcept { return fits_registers_; }
  bool fits_bytes() const noexcept { return fits_registers_ && interval_of_.size() <= kByteGrid; }
  /// interval_of() as bytes, 64 of them; only if fits_bytes().
  const std::uint8_t* interval_bytes() const noexcept { return bytes_.data(); }
  /// interval_of() at four bits each, 16 words; only if fits_registers().
  const std::uint32_t* interval_nibbles() const noexcept { return nibbles_.data(); }

 private:
  float granularity_;
  std::array<float, 256> value_{};
  std::array<float, 256> inverse_gap_{};
  std::vector<std::int32_t> interval_of_;
  std::array<std::uint32_t, kRegisterGrid / 8> nibbles_{};
  std::array<std::uint8_t, kByteGrid> bytes_{};
  bool fits_registers_ = false;
};

}  // namespace thc
