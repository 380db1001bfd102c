// Points that rotated coordinates are rounded to the nearest of, and the edges between their cells.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace thc {

inline constexpr unsigned kMaxPointBits = 8;

/// Points of one rank, in units of the root mean square of a block (byteps_thc/_scheme/tables/points.py makes them).
/// Code k is the cell from edge k - 1, with it, to edge k, without it.
class NearestPoints {
 public:
  /// Entries of a vector of 16 lanes: shorter tables are repeated up to it.
  static constexpr std::size_t kLeastEntries = 16;
  /// Levels that are indexed by codes; see aligned().
  static constexpr unsigned kAlignedLevels = 4;

  /// edges: 2^bits - 1, points: 2^bits. Throws ConfigurationError unless bits are in 1 .. 8, edges and points are
  /// finite and ascend, edges strictly.
  NearestPoints(std::span<const float> edges, std::span<const float> points);

  unsigned bits() const noexcept { return bits_; }
  /// 2^bits of them.
  const float* points() const noexcept { return points_.data(); }
  /// Binary search: entry p is the edge that splits the codes whose upper `level` bits are p.
  const float* level(unsigned level) const noexcept { return levels_[level].data(); }
  /// The same for the upper bits of codes, kAlignedLevels of them or all: entry i is of the code whose upper bits are
  /// i, as far as the levels above have found them, and zero below.
  const float* aligned(unsigned level) const noexcept { return aligned_[level].data(); }

  /// Cells of a grid, kGrid of them, that coordinate z is in by trunc(fma(v, grid_scale(), kGridMiddle)), v being z, or
  /// grid_limit() with the sign of z if that is smaller.
  static constexpr std::size_t kGrid = 128;
  static constexpr float kGridMiddle = kGrid / 2.0F;
  float grid_limit() const noexcept { return grid_limit_; }
  float grid_scale() const noexcept { return grid_scale_; }
  /// Whether no cell of the grid has two edges.
  bool has_grid() const noexcept { return has_grid_; }
  /// Edges in front of each cell of the grid: a code, and the next one where z is not below edges()[code].
  const std::uint8_t* grid() const noexcept { return grid_.data(); }
  /// All edges, and infinity behind them.
  const float* edges() const noexcept { return edges_.data(); }

 private:
  static constexpr std::size_t kMostPoints = std::size_t{1} << kMaxPointBits;

  void fill_grid();

  unsigned bits_;
  std::array<float, kMostPoints> points_;
  std::array<float, kMostPoints> edges_;
  std::array<std::array<float, kMostPoints / 2>, kMaxPointBits> levels_;
  std::array<std::array<float, kLeastEntries>, kAlignedLevels> aligned_;
  std::array<std::uint8_t, kGrid> grid_;
  float grid_limit_ = 0;
  float grid_scale_ = 0;
  bool has_grid_ = false;
};

}  // namespace thc
