// Sums with a fixed order of additions, so that every instruction set, and a GPU, gets the same bits.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>

namespace thc {

/// Squares of coordinates j, exact in double, are added in lane j % 16, in order of j.
inline constexpr std::size_t kSumLanes = 16;
template <class T>
using Lanes = std::array<T, kSumLanes>;

/// Adds lanes pairwise (l and l + 8, then 4, 2, 1).
template <class T>
T sum_of(std::array<T, kSumLanes> lanes) noexcept {
  for (std::size_t half = kSumLanes / 2; half > 0; half /= 2) {
    for (std::size_t l = 0; l < half; ++l) {
      lanes[l] += lanes[l + half];
    }
  }
  return lanes[0];
}

inline float norm_of(const Lanes<double>& lanes) noexcept { return static_cast<float>(std::sqrt(sum_of(lanes))); }

}  // namespace thc
