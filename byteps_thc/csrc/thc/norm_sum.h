// Sum of squares with a fixed order of additions, so that every instruction set gets the same norm.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>

namespace thc {

/// Lane l sums the squares of coordinates j with j % 16 == l, in order of j. Squares of floats are exact in double.
inline constexpr std::size_t kNormLanes = 16;
using NormLanes = std::array<double, kNormLanes>;

/// Adds lanes pairwise (l and l + 8, then 4, 2, 1) and takes the root.
inline float norm_of(NormLanes lanes) noexcept {
  for (std::size_t half = kNormLanes / 2; half > 0; half /= 2) {
    for (std::size_t l = 0; l < half; ++l) {
      lanes[l] += lanes[l + half];
    }
  }
  return static_cast<float>(std::sqrt(lanes[0]));
}

}  // namespace thc
