#include "thc/requantize.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "thc/bit_stream.h"
#include "thc/block_layout.h"
#include "thc/quantization.h"
#include "thc/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thc/requantize.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace thc {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DI = hn::ScalableTag<std::int32_t>;

/// x[count] = 2 sum - most; returns the largest magnitude. count: a multiple of kMinRotationBlock.
template <class Sum>
HWY_INLINE std::int32_t center(const std::uint8_t* sums, std::size_t count, std::uint32_t most, float* x) {
  const DI di;
  const hn::Rebind<Sum, DI> dsum;
  const auto zero = hn::Set(di, static_cast<std::int32_t>(most));
  auto largest = hn::Zero(di);
  for (std::size_t j = 0; j < count; j += hn::Lanes(di)) {
    const auto sum = hn::PromoteTo(di, hn::LoadU(dsum, reinterpret_cast<const Sum*>(sums + j * sizeof(Sum))));
    const auto centered = hn::Sub(hn::ShiftLeft<1>(sum), zero);
    largest = hn::Max(largest, hn::Abs(centered));
    hn::StoreU(hn::ConvertTo(DF(), centered), DF(), x + j);
  }
  return hn::GetLane(hn::MaxOfLanes(di, largest));
}

HWY_ATTR std::int32_t center_8(const std::uint8_t* sums, std::size_t count, std::uint32_t most, float* x) {
  return center<std::uint8_t>(sums, count, most, x);
}
HWY_ATTR std::int32_t center_16(const std::uint8_t* sums, std::size_t count, std::uint32_t most, float* x) {
  return center<std::uint16_t>(sums, count, most, x);
}

}  // namespace HWY_NAMESPACE
}  // namespace thc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thc {
namespace {

HWY_EXPORT(center_8);
HWY_EXPORT(center_16);

/// Coordinates whose floats stay in the cache until they are quantized; a multiple of kScaleGroup.
constexpr std::size_t kTile = 8192;

std::uint16_t rounded_up_to_bfloat16(std::int32_t magnitude) {
  return static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(static_cast<float>(magnitude)) + 0xFFFF) >> 16);
}

float float_of(std::uint16_t bfloat16) { return std::bit_cast<float>(static_cast<std::uint32_t>(bfloat16) << 16); }

std::int32_t center(const ExactSums& exact, std::size_t first, std::size_t count, float* x) {
  const auto* sums = static_cast<const std::uint8_t*>(exact.sums) + first * exact.value_bits / 8;
  return exact.value_bits == 8 ? HWY_DYNAMIC_DISPATCH(center_8)(sums, count, exact.most, x)
                               : HWY_DYNAMIC_DISPATCH(center_16)(sums, count, exact.most, x);
}

}  // namespace

void requantize(const ExactSums& exact, const LookupTable& table, const RandomKey& key, std::uint8_t* codes,
                std::uint16_t* scales) {
  float* const x = block_scratch(kTile);
  // Blocks of quantize(), in whose place of max norms the scales are: the last group may be two or three blocks.
  float limits[kTile / kScaleGroup + 2];
  for (std::size_t first = 0; first < exact.count; first += kTile) {
    const BlockLayout layout(std::min(kTile, exact.count - first), kScaleGroup);
    for (std::size_t b = 0; b < layout.blocks();) {
      const std::size_t offset = layout.offset(b);
      const std::size_t size = std::min(kScaleGroup, layout.padded() - offset);
      const std::int32_t largest = center(exact, first + offset, size, x + offset);
      const std::uint16_t scale = rounded_up_to_bfloat16(largest);
      std::memcpy(scales + (first + offset) / kScaleGroup, &scale, sizeof(scale));
      for (; b < layout.blocks() && layout.offset(b) < offset + size; ++b) {
        limits[b] = float_of(scale);
      }
    }
    QuantizeOptions options{1.0F, key, {kRequantizeDomain, 0}, false};
    options.key.first += first;
    quantize(x, limits, layout, table, options, codes + code_bytes(first, table.bits()));
  }
}

}  // namespace thc
#endif
