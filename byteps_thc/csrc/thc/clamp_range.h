// The range that coordinates of a rotation block are clamped to (paper, section 5.3), and the maps to and from it.
#pragma once

#include <cmath>
#include <cstdint>

namespace thc {

/// [-limit, limit] with limit = threshold * max norm; table value t stands for t * step - limit.
struct ClampRange {
  float limit;
  float step;   // 2 limit / granularity
  float scale;  // granularity / (2 limit); 0 where that is not finite: every coordinate is then about zero
  bool finite;  // false: some worker had a non-finite gradient

  ClampRange(float max_norm, float threshold, std::uint16_t granularity) noexcept
      : limit(threshold * max_norm),
        step(2.0F * limit / static_cast<float>(granularity)),
        scale(0),
        finite(std::isfinite(2.0F * limit)) {
    const float quotient = static_cast<float>(granularity) * 0.5F / limit;
    if (finite && std::isfinite(quotient)) {
      scale = quotient;
    }
  }
};

}  // namespace thc
