// The map from sums of table values to coordinates; it changes with the chunk (contributions) and the block (norm).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "thc/clamp_range.h"
#include "thc/decode.h"

namespace thc {

/// coordinate = sum * slope - shift.
struct AffineMap {
  float slope;
  float shift;
};

/// Chunks and blocks both start at multiples of this many coordinates.
inline constexpr std::size_t kAffineGroup = 64;

/// Map of one chunk in one block, with the result times `factor` (a power of two, so exact).
inline AffineMap affine_map(const ClampRange& range, unsigned contributions, float factor) noexcept {
  if (!range.finite) {
    return {std::numeric_limits<float>::quiet_NaN(), 0.0F};
  }
  if (contributions == 0) {
    return {0.0F, 0.0F};
  }
  return {range.step / static_cast<float>(contributions) * factor, range.limit * factor};
}

inline unsigned workers_of(const Aggregate& aggregate, std::size_t chunk) noexcept {
  std::uint16_t workers = 0;
  std::memcpy(&workers, aggregate.contributions + chunk, sizeof(workers));
  return workers;
}

inline ClampRange block_range(const Aggregate& aggregate, std::size_t block) noexcept {
  float max_norm = 0;
  std::memcpy(&max_norm, aggregate.max_norms + block, sizeof(max_norm));
  return ClampRange(max_norm, aggregate.threshold, aggregate.granularity);
}

/// maps[size / kAffineGroup] of the coordinates offset .. offset + size - 1, all in one block.
inline void fill_affine_maps(const Aggregate& aggregate, const ClampRange& range, std::size_t offset, std::size_t size,
                             float factor, AffineMap* maps) noexcept {
  for (std::size_t j = offset; j < offset + size;) {
    const std::size_t chunk = j / aggregate.codes_per_chunk;
    const std::size_t end = std::min(offset + size, (chunk + 1) * aggregate.codes_per_chunk);
    const AffineMap map = affine_map(range, workers_of(aggregate, chunk), factor);
    std::fill(maps + (j - offset) / kAffineGroup, maps + (end - offset) / kAffineGroup, map);
    j = end;
  }
}

/// Sums of 8 bits in blocks up to this size add up to less than 2^24: their transform is exact in fp32.
inline constexpr std::size_t kMaxExactBlock = std::size_t{1} << 16;

/// Whether all coordinates of the block have one map, so that decode() can transform the sums first, exactly.
inline bool decodes_exactly(const Aggregate& aggregate, const ClampRange& range, std::size_t offset,
                            std::size_t size) noexcept {
  if (aggregate.value_bits != 8 || size > kMaxExactBlock || !range.finite) return false;
  const std::size_t first = offset / aggregate.codes_per_chunk;
  const std::size_t last = (offset + size - 1) / aggregate.codes_per_chunk;
  const unsigned workers = workers_of(aggregate, first);
  for (std::size_t chunk = first + 1; chunk <= last; ++chunk) {
    if (workers_of(aggregate, chunk) != workers) return false;
  }
  return workers > 0;
}

}  // namespace thc
