#include "thc/decode.h"

#include <algorithm>
#include <vector>

#include "thc/affine_map.h"
#include "thc/instruction_set.h"
#include "thc/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thc/decode.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "thc/hadamard-inl.h"
#include "thc/signs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thc {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Dequantizes vectors of a block; Sum is the lane type of the aggregate.
template <class Sum>
struct LoadDequantized {
  const std::uint8_t* sums;  // bytes: lanes may be unaligned
  const AffineMap* maps;
  HWY_INLINE VF operator()(std::size_t i, std::size_t /*lane*/) const {
    const hn::RebindToSigned<DF> di;
    const hn::Rebind<Sum, DF> dsum;
    const auto sum = hn::LoadU(dsum, reinterpret_cast<const Sum*>(sums + i * sizeof(Sum)));
    const VF value = hn::ConvertTo(DF(), hn::PromoteTo(di, sum));
    const AffineMap& map = maps[i / kAffineGroup];
    return hn::Sub(hn::Mul(value, hn::Set(DF(), map.slope)), hn::Set(DF(), map.shift));
  }
};

template <class Sum>
HWY_INLINE LoadDequantized<Sum> block_load(const Aggregate& aggregate, std::size_t offset, const AffineMap* maps) {
  return {static_cast<const std::uint8_t*>(aggregate.sums) + offset * sizeof(Sum), maps};
}

template <class Sum>
HWY_INLINE void dequantize_as(const Aggregate& aggregate, const BlockLayout& layout, float* rotated) {
  std::vector<AffineMap> maps(layout.rotation_block() / kAffineGroup);
  for (std::size_t b = 0; b < layout.blocks(); ++b) {
    const std::size_t offset = layout.offset(b);
    fill_affine_maps(aggregate, block_range(aggregate, b), offset, layout.size(b), 1.0F, maps.data());
    const auto load = block_load<Sum>(aggregate, offset, maps.data());
    for (std::size_t i = 0; i < layout.size(b); i += kLanes) {
      hn::StoreU(load(i, i % 16), DF(), rotated + offset + i);
    }
  }
}

template <class Sum>
HWY_INLINE void decode_as(const Aggregate& aggregate, const BlockLayout& layout, const RandomKey& key, Floats out) {
  SignWindow signs(key);
  std::vector<AffineMap> maps(layout.rotation_block() / kAffineGroup);
  const std::size_t block_floats = scratch_floats(layout.rotation_block());
  float* scratch = block_scratch(block_floats + layout.rotation_block());
  float* staging = scratch + block_floats;  // of blocks that cannot be written to `out` directly
  for (std::size_t b = 0; b < layout.blocks(); ++b) {
    const std::size_t offset = layout.offset(b);
    const std::size_t size = layout.size(b);
    const std::size_t used = std::min(size, layout.coordinates() - offset);
    fill_affine_maps(aggregate, block_range(aggregate, b), offset, size, 1.0F / static_cast<float>(size), maps.data());
    auto load = block_load<Sum>(aggregate, offset, maps.data());
    const bool direct = out.format == FloatFormat::kFp32 && used == size;
    float* target = direct ? static_cast<float*>((out + offset).data) : staging;
    hadamard(size, load, scratch, StoreWithSigns{target, signs.bits(offset, size)});
    if (!direct) {
      thc::from_fp32(staging, used, out + offset);
    }
  }
}

HWY_ATTR void dequantize(const Aggregate& aggregate, const BlockLayout& layout, float* rotated) {
  aggregate.value_bits == 8 ? dequantize_as<std::uint8_t>(aggregate, layout, rotated)
                            : dequantize_as<std::uint16_t>(aggregate, layout, rotated);
}

HWY_ATTR void decode(const Aggregate& aggregate, const BlockLayout& layout, const RandomKey& key, Floats out) {
  aggregate.value_bits == 8 ? decode_as<std::uint8_t>(aggregate, layout, key, out)
                            : decode_as<std::uint16_t>(aggregate, layout, key, out);
}

}  // namespace HWY_NAMESPACE
}  // namespace thc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thc {

HWY_EXPORT(dequantize);
HWY_EXPORT(decode);

void dequantize(const Aggregate& aggregate, const BlockLayout& layout, float* rotated) {
  naive_selected() ? naive::dequantize(aggregate, layout, rotated)
                   : HWY_DYNAMIC_DISPATCH(dequantize)(aggregate, layout, rotated);
}

void decode(const Aggregate& aggregate, const BlockLayout& layout, const RandomKey& key, Floats out) {
  naive_selected() ? naive::decode(aggregate, layout, key, out)
                   : HWY_DYNAMIC_DISPATCH(decode)(aggregate, layout, key, out);
}

}  // namespace thc
#endif
