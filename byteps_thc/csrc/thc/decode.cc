#include "thc/decode.h"

#include <algorithm>
#include <vector>

#include "thc/affine_map.h"
#include "thc/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thc/decode.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "thc/hadamard-inl.h"
#include "thc/integer_hadamard-inl.h"
#include "thc/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thc {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Dequantizes vectors of a block; Sum is the lane type of the aggregate.
template <class Sum>
struct LoadDequantized {
  const std::uint8_t* sums;  // bytes: lanes may be unaligned
  const AffineMap* maps;
  HWY_INLINE VF operator()(std::size_t i) const {
    const hn::RebindToSigned<DF> di;
    const hn::Rebind<Sum, DF> dsum;
    const auto sum = hn::LoadU(dsum, reinterpret_cast<const Sum*>(sums + i * sizeof(Sum)));
    const VF value = hn::ConvertTo(DF(), hn::PromoteTo(di, sum));
    const AffineMap& map = maps[i / kAffineGroup];
    return hn::Sub(hn::Mul(value, hn::Set(DF(), map.slope)), hn::Set(DF(), map.shift));
  }
};

/// Loads 8-bit sums as they are.
struct LoadSums {
  const std::uint8_t* sums;
  HWY_INLINE VF operator()(std::size_t i) const {
    const hn::Rebind<std::uint8_t, DF> dsum;
    return hn::ConvertTo(DF(), hn::PromoteTo(hn::RebindToSigned<DF>(), hn::LoadU(dsum, sums + i)));
  }
};

/// Maps exact transforms of sums to averages and stores them with their signs flipped.
struct StoreMapped {
  StoreWithSigns target;
  float slope;
  float limit;
  float offset;  // share of coordinate 0 that the transform lacks
  HWY_INLINE void operator()(std::size_t i, VF v) const {
    VF average = hn::Mul(v, hn::Set(DF(), slope));
    if (HWY_UNLIKELY(i == 0)) {
      average = hn::InsertLane(average, 0, (hn::GetLane(v) + offset) * slope - limit);
    }
    target(i, average);
  }
};

/// Averages of one block that decodes_exactly().
HWY_INLINE void decode_exact_block(const std::uint8_t* sums, std::size_t size, const AffineMap& map, float limit,
                                   float* scratch, StoreWithSigns target) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  if (size == kIntegerBlock) {
    integer_hadamard_block(sums, reinterpret_cast<std::int16_t*>(scratch),
                           StoreMapped{target, map.slope, limit, kIntegerOffset});
    return;
  }
#endif
  LoadSums load{sums};
  hadamard(size, load, scratch, StoreMapped{target, map.slope, limit, 0.0F});
}

template <class Sum>
HWY_INLINE LoadDequantized<Sum> block_load(const Aggregate& aggregate, std::size_t offset, const AffineMap* maps) {
  return {static_cast<const std::uint8_t*>(aggregate.sums) + offset * sizeof(Sum), maps};
}

template <class Sum>
HWY_INLINE void decode_as(const Aggregate& aggregate, const BlockLayout& layout, std::size_t begin, std::size_t end,
                          const RandomKey& key, Floats out) {
  SignWindow signs(key);
  std::vector<AffineMap> maps(layout.rotation_block() / kAffineGroup);
  const std::size_t block_floats = scratch_floats(layout.rotation_block());
  float* scratch = block_scratch(block_floats + layout.rotation_block());
  float* staging = scratch + block_floats;  // of blocks that cannot be written to `out` directly
  for (std::size_t b = begin; b < end; ++b) {
    const std::size_t offset = layout.offset(b);
    const std::size_t size = layout.size(b);
    const std::size_t used = std::min(size, layout.coordinates() - offset);
    const bool direct = out.format == FloatFormat::kFp32 && used == size;
    const StoreWithSigns target{direct ? static_cast<float*>((out + offset).data) : staging, signs.bits(offset, size)};
    const ClampRange range = block_range(aggregate, b);
    fill_affine_maps(aggregate, range, offset, size, 1.0F / static_cast<float>(size), maps.data());
    auto load = block_load<Sum>(aggregate, offset, maps.data());
    if (decodes_exactly(aggregate, range, offset, size)) {
      decode_exact_block(load.sums, size, maps[0], range.limit, scratch, target);
    } else {
      hadamard(size, load, scratch, target);
    }
    if (!direct) {
      thc::from_fp32(staging, used, out + offset);
    }
  }
}

HWY_ATTR void decode(const Aggregate& aggregate, const BlockLayout& layout, std::size_t begin, std::size_t end,
                     const RandomKey& key, Floats out) {
  aggregate.value_bits == 8 ? decode_as<std::uint8_t>(aggregate, layout, begin, end, key, out)
                            : decode_as<std::uint16_t>(aggregate, layout, begin, end, key, out);
}

}  // namespace HWY_NAMESPACE
}  // namespace thc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thc {

HWY_EXPORT(decode);

void decode(ThreadPool* pool, const Aggregate& aggregate, const BlockLayout& layout, const RandomKey& key, Floats out) {
  // Fewest coordinates of a range: 50 us of a thread with AVX-512, the cost of waking a helper.
  constexpr std::size_t kLeast = std::size_t{1} << 18;
  for_each_blocks(pool, layout, kLeast, [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(decode)(aggregate, layout, begin, end, key, out);
  });
}

}  // namespace thc
#endif
