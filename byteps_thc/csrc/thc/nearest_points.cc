#include "thc/nearest_points.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "thc/errors.h"

namespace thc {
namespace {

unsigned checked_bits(std::size_t edges, std::size_t points) {
  if (!std::has_single_bit(points) || points < 2 || points > std::size_t{1} << kMaxPointBits || edges != points - 1) {
    throw ConfigurationError("points must be 2, 4 .. 256, with an edge between neighbours, got " +
                             std::to_string(points) + " with " + std::to_string(edges) + " edges");
  }
  return static_cast<unsigned>(std::countr_zero(points));
}

bool are_finite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
}

}  // namespace

NearestPoints::NearestPoints(std::span<const float> edges, std::span<const float> points)
    : bits_(checked_bits(edges.size(), points.size())), points_{}, edges_{}, levels_{}, aligned_{}, grid_{} {
  const bool ascend = std::adjacent_find(edges.begin(), edges.end(), std::greater_equal<>()) == edges.end() &&
                      std::is_sorted(points.begin(), points.end());
  if (!ascend || !are_finite(edges) || !are_finite(points)) {
    throw ConfigurationError("points and edges must be finite and ascend");
  }
  for (std::size_t i = 0; i < std::max(points.size(), kLeastEntries); ++i) {
    points_[i] = points[i % points.size()];
  }
  for (unsigned level = 0; level < bits_; ++level) {
    const std::size_t entries = std::size_t{1} << level;
    for (std::size_t i = 0; i < std::max(entries, kLeastEntries); ++i) {
      levels_[level][i] = edges[(2 * (i % entries) + 1) * (points.size() / 2 / entries) - 1];
    }
  }
  const unsigned upper_bits = std::min(bits_, kAlignedLevels);
  const std::size_t codes = std::size_t{1} << upper_bits;
  const std::size_t each = points.size() / codes;
  for (unsigned level = 0; level < upper_bits; ++level) {
    const std::size_t half = codes >> (level + 1);
    for (std::size_t i = 0; i + half < codes; ++i) {
      aligned_[level][i] = edges[(i + half) * each - 1];
    }
  }
  edges_.fill(std::numeric_limits<float>::infinity());
  std::copy(edges.begin(), edges.end(), edges_.begin());
  fill_grid();
}

void NearestPoints::fill_grid() {
  const std::size_t count = (std::size_t{1} << bits_) - 1;
  grid_limit_ = std::max(std::abs(edges_[0]), std::abs(edges_[count - 1]));
  grid_scale_ = (kGridMiddle - 0.5F) / grid_limit_;
  if (!std::isfinite(grid_scale_)) return;  // the only edge is 0
  // Whatever it rounds, a cell never decreases as z increases: edges of cells in front are below z, others behind it.
  std::array<std::uint8_t, kGrid> within{};
  for (std::size_t i = 0; i < count; ++i) {
    ++within[static_cast<std::size_t>(std::fma(edges_[i], grid_scale_, kGridMiddle))];
  }
  has_grid_ = *std::max_element(within.begin(), within.end()) <= 1;
  for (std::size_t cell = 1; cell < kGrid; ++cell) {
    grid_[cell] = static_cast<std::uint8_t>(grid_[cell - 1] + within[cell - 1]);
  }
}

}  // namespace thc