// bfloat16 in vectors, as its 16 bits. No include guard: compiled once per target.
#if defined(THC_BFLOAT16_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef THC_BFLOAT16_INL_H
#undef THC_BFLOAT16_INL_H
#else
#define THC_BFLOAT16_INL_H
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace thc {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Floats of a vector D of bfloat16 at `in`, of any alignment.
template <class D>
HWY_INLINE hn::Vec<D> load_bf16(D d, const std::uint16_t* in) {
  const hn::RebindToUnsigned<D> d32;
  const hn::Rebind<std::uint16_t, D> d16;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, in))));
}

/// Stores v, rounded to nearest even; NaN stays NaN.
template <class D>
HWY_INLINE void store_bf16(D /*d*/, hn::Vec<D> v, std::uint16_t* out) {
  const hn::RebindToUnsigned<D> d32;
  const hn::Rebind<std::uint16_t, D> d16;
  const auto bits = hn::BitCast(d32, v);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto to_even = hn::Add(hn::Set(d32, 0x7fff), hn::And(upper, hn::Set(d32, 1)));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, to_even));
  const auto is_nan = hn::RebindMask(d32, hn::IsNaN(v));
  const auto result = hn::IfThenElse(is_nan, hn::Or(upper, hn::Set(d32, 0x40)), rounded);
  hn::StoreU(hn::TruncateTo(d16, result), d16, out);
}

}  // namespace HWY_NAMESPACE
}  // namespace thc
HWY_AFTER_NAMESPACE();

#endif
