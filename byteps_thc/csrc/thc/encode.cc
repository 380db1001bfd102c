#include "thc/encode.h"

#include <algorithm>
#include <vector>

#include "thc/bit_stream.h"
#include "thc/rotation.h"

namespace thc {
namespace {

/// Coordinates of a tile, unless a rotation block is larger: 128 KiB, so that it stays in L2 between the steps.
constexpr std::size_t kTile = 32768;

}  // namespace

std::size_t encode(ConstFloats gradient, float* residual, const float* max_norms, const BlockLayout& layout,
                   const LookupTable& table, const QuantizeOptions& options, std::uint8_t* codes) {
  thread_local std::vector<float> rotated;
  const std::size_t tile = std::max(kTile, layout.rotation_block());
  std::size_t clamped = 0;
  for (std::size_t begin = 0, end = 0; begin < layout.blocks(); begin = end) {
    const std::size_t first = layout.offset(begin);
    end = layout.block_within(begin, tile);
    const BlockLayout part = layout.part(begin, end);
    rotated.resize(std::max(rotated.size(), part.padded()));
    QuantizeOptions here = options;
    here.key.first += first;
    float* carried = residual == nullptr ? nullptr : residual + first;
    if (layout.coordinates() - first >= 2 * tile && gradient.format == FloatFormat::kFp32) {
      here.next_gradient = static_cast<const float*>((gradient + (first + part.padded())).data);
      here.next_residual = carried == nullptr ? nullptr : carried + part.padded();
    }
    rotate(gradient + first, carried, part, here.key, rotated.data());
    clamped += quantize(rotated.data(), max_norms + begin, part, table, here, codes + code_bytes(first, table.bits()));
    if (options.keep_error) {
      inverse_rotate(rotated.data(), part, here.key, carried);
    }
  }
  return clamped;
}

}  // namespace thc
