#include <cmath>
#include <cstring>
#include <vector>

#include "csrc/naive/kernels.h"
#include "thc/clamp_range.h"

namespace thc::naive {
namespace {

/// Code of position u in [0, g], given 16 rounding bits.
std::uint8_t round_to_code(float u, std::uint32_t random16, const LookupTable& table) {
  const auto values = table.values();
  std::size_t z = 0;
  while (z + 2 < table.levels() && static_cast<float>(values[z + 1]) <= u) {
    ++z;
  }
  const auto below = static_cast<float>(values[z]);
  const float inverse_gap = 1.0F / (static_cast<float>(values[z + 1]) - below);
  const float fraction = (u - below) * inverse_gap;
  const bool up = (static_cast<float>(random16) + 0.5F) * 0x1p-16F < fraction;
  return static_cast<std::uint8_t>(z + (up ? 1 : 0));
}

/// max(0, min(u, g)); NaN becomes 0.
float clamp(float u, float granularity) {
  const float low = u > 0.0F ? u : 0.0F;
  return low < granularity ? low : granularity;
}

}  // namespace

std::size_t quantize(float* rotated, const float* max_norms, const BlockLayout& layout, const LookupTable& table,
                     const QuantizeOptions& options, std::uint8_t* codes) {
  const auto granularity = static_cast<float>(table.granularity());
  std::vector<std::uint8_t> block_codes(layout.padded());
  std::size_t clamped = 0;
  for (std::size_t b = 0; b < layout.blocks(); ++b) {
    float max_norm = 0;
    std::memcpy(&max_norm, max_norms + b, sizeof(max_norm));
    const ClampRange range(max_norm, options.threshold, table.granularity());
    for (std::size_t j = layout.offset(b); j < layout.offset(b) + layout.size(b); ++j) {
      float x = 0;
      std::memcpy(&x, rotated + j, sizeof(x));
      float error = 0;
      if (range.finite) {
        const float u = clamp(x * range.scale + granularity * 0.5F, granularity);
        block_codes[j] = round_to_code(u, rounding_bits(options.key, options.rounding, j), table);
        clamped += std::fabs(x) > range.limit ? 1 : 0;
        const auto value = static_cast<float>(table.values()[block_codes[j]]);
        error = x - (value * range.step - range.limit);
      }
      if (options.keep_error) {
        std::memcpy(rotated + j, &error, sizeof(error));
      }
    }
  }
  naive::pack(block_codes.data(), block_codes.size(), table.bits(), codes);
  return clamped;
}

}  // namespace thc::naive
