#include "thc/requantize.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "thc/bit_stream.h"
#include "thc/block_layout.h"
#include "thc/quantization.h"
#include "thc/scratch.h"

namespace thc {
namespace {

/// Coordinates whose floats stay in the cache until they are quantized; a multiple of kScaleGroup.
constexpr std::size_t kTile = 8192;

std::uint16_t rounded_up_to_bfloat16(float magnitude) {
  return static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(magnitude) + 0xFFFF) >> 16);
}

}  // namespace

void requantize(const ExactSums& exact, const LookupTable& table, const RandomKey& key, std::uint8_t* codes,
                std::uint16_t* scales) {
  float* const x = block_scratch(kTile);
  // Blocks of quantize(), in whose place of max norms the scales are: the last group may be two or three blocks.
  float limits[kTile / kScaleGroup + 2];
  for (std::size_t first = 0; first < exact.count; first += kTile) {
    const BlockLayout layout(std::min(kTile, exact.count - first), kScaleGroup);
    center(exact, key, first, layout.padded(), x);
    for (std::size_t b = 0; b < layout.blocks();) {
      const std::size_t offset = layout.offset(b);
      const std::size_t size = std::min(kScaleGroup, layout.padded() - offset);
      const std::uint16_t scale = rounded_up_to_bfloat16(largest_magnitude(x + offset, size));
      std::memcpy(scales + (first + offset) / kScaleGroup, &scale, sizeof(scale));
      for (; b < layout.blocks() && layout.offset(b) < offset + size; ++b) {
        limits[b] = scale_value(scale);
      }
    }
    QuantizeOptions options{1.0F, key, {kRequantizeDomain, 0}, false};
    options.key.first += first;
    quantize(x, limits, layout, table, options, codes + code_bytes(first, table.bits()));
  }
}

}  // namespace thc
