#include "thc/encode.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "thc/pack.h"
#include "thc/rotation.h"

namespace thc {
namespace {

/// Coordinates of a tile, unless a rotation block is larger: 128 KiB, so that it stays in L2 between the steps.
constexpr std::size_t kTile = 32768;
/// Fewest coordinates of a range: 100 us of a thread with AVX-512, for a range's last tile is not prefetched.
constexpr std::size_t kLeast = std::size_t{1} << 17;

/// Blocks from `begin` to `last`.
std::size_t encode_range(ConstFloats gradient, float* residual, const float* max_norms, const BlockLayout& layout,
                         std::size_t begin, std::size_t last, const LookupTable& table, const QuantizeOptions& options,
                         std::uint8_t* codes) {
  thread_local std::vector<float> rotated;
  const std::size_t tile = std::max(kTile, layout.rotation_block());
  const std::size_t behind = std::min(layout.offset(last), layout.coordinates());
  std::size_t clamped = 0;
  for (std::size_t end = 0; begin < last; begin = end) {
    const std::size_t first = layout.offset(begin);
    end = std::min(layout.block_within(begin, tile), last);
    const BlockLayout part = layout.part(begin, end);
    rotated.resize(std::max(rotated.size(), part.padded()));
    QuantizeOptions here = options;
    here.key.first += first;
    float* carried = residual == nullptr ? nullptr : residual + first;
    if (behind - first >= 2 * tile && gradient.format == FloatFormat::kFp32) {
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

}  // namespace

std::size_t encode(ThreadPool* pool, ConstFloats gradient, float* residual, const float* max_norms,
                   const BlockLayout& layout, const LookupTable& table, const QuantizeOptions& options,
                   std::uint8_t* codes) {
  std::atomic<std::size_t> clamped = 0;
  for_each_blocks(pool, layout, kLeast, [&](std::size_t begin, std::size_t end) {
    clamped += encode_range(gradient, residual, max_norms, layout, begin, end, table, options, codes);
  });
  return clamped;
}

}  // namespace thc
