// Philox4x32 on vectors of 64-bit lanes, one Philox block per lane. No include guard: compiled once per target.
#if defined(THC_PHILOX_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef THC_PHILOX_INL_H
#undef THC_PHILOX_INL_H
#else
#define THC_PHILOX_INL_H
#endif

#include "hwy/highway.h"
#include "thc/philox.h"

HWY_BEFORE_NAMESPACE();
namespace thc {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Words of consecutive Philox blocks: lane l of `word[w]` holds word w of block `first + l` in its lower 32 bits. Upper
/// halves are not zero: the multiplication ignores them, so clearing them each round would be wasted.
template <class V64>
struct PhiloxLanes {
  V64 word[4];
};

template <int kRounds, class D64>
HWY_INLINE PhiloxLanes<hn::Vec<D64>> philox_lanes(D64 d, const RandomKey& key, std::uint32_t domain,
                                                  std::uint32_t first_index) {
  using V = hn::Vec<D64>;
  const hn::Repartition<std::uint32_t, D64> d32;
  const V multiplier0 = hn::Set(d, kPhiloxMultiplier0);
  const V multiplier1 = hn::Set(d, kPhiloxMultiplier1);
  V c0 = hn::Iota(d, first_index);
  V c1 = hn::Set(d, domain);
  V c2 = hn::Set(d, key.tensor);
  V c3 = hn::Set(d, key.round);
  auto key0 = static_cast<std::uint32_t>(key.seed);
  auto key1 = static_cast<std::uint32_t>(key.seed >> 32);
#pragma GCC unroll 10
  for (int i = 0; i < kRounds; ++i) {
    const V product0 = hn::MulEven(hn::BitCast(d32, multiplier0), hn::BitCast(d32, c0));
    const V product1 = hn::MulEven(hn::BitCast(d32, multiplier1), hn::BitCast(d32, c2));
    c0 = hn::Xor3(hn::ShiftRight<32>(product1), c1, hn::Set(d, key0));
    c1 = product1;
    c2 = hn::Xor3(hn::ShiftRight<32>(product0), c3, hn::Set(d, key1));
    c3 = product0;
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
  return {{c0, c1, c2, c3}};
}

}  // namespace HWY_NAMESPACE
}  // namespace thc
HWY_AFTER_NAMESPACE();

#endif
