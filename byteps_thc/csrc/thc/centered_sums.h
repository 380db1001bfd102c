// Exact sums of table values as numbers around zero: what they stand for, in units of the clamp over the largest sum.
#pragma once

#include <cstddef>
#include <cstdint>

namespace thc {

/// Where sums lie, and what they are sums of.
struct ExactSums {
  const void* sums;     // in host order, any alignment
  unsigned value_bits;  // 8 or 16
  std::size_t count;    // a multiple of kMinRotationBlock
  std::uint32_t most;   // granularity * workers: the largest that a sum can be
};

/// x[count] = 2 S - most of the sums from `first` on, exactly; returns the largest magnitude. first, count: multiples of
/// kMinRotationBlock.
float center(const ExactSums& exact, std::size_t first, std::size_t count, float* x) noexcept;

}  // namespace thc
