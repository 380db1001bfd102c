// Exact sums of table values as numbers around zero: what they stand for, in units of the clamp over the largest sum.
#pragma once

#include <cstddef>
#include <cstdint>

#include "thc/known_error.h"
#include "thc/philox.h"

namespace thc {

/// Where sums lie, and what they are sums of.
struct ExactSums {
  const void* sums;     // in host order, any alignment
  unsigned value_bits;  // 8 or 16
  std::size_t count;    // a multiple of kMinRotationBlock
  std::uint32_t most;   // granularity * workers: the largest that a sum can be
  // What stratified rounding is known to err by in them, by known_sum_bits(); null for nothing.
  const KnownError* known = nullptr;
  unsigned workers = 0;
  std::uint32_t domain = 0;  // of the rounding bits
};

/// x[count] = 2 (S - known error) - most of the sums from `first` on; without known errors that is exact. first, count:
/// multiples of kMinRotationBlock. key.first: the partition's coordinate that `exact` begins with.
void center(const ExactSums& exact, const RandomKey& key, std::size_t first, std::size_t count, float* x);

/// The largest magnitude of x[count]. count: a multiple of kMinRotationBlock.
float largest_magnitude(const float* x, std::size_t count) noexcept;

}  // namespace thc
