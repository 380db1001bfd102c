// Rounding bits in vectors of floats. No include guard: once per target.
#if defined(THC_ROUNDING_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef THC_ROUNDING_INL_H
#undef THC_ROUNDING_INL_H
#else
#define THC_ROUNDING_INL_H
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace thc {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// r + 0.5 for 16 random bits r per lane; even lanes take the lower bits of a half of each 64-bit lane, odd ones the
/// next.
template <bool kUpperHalf>
HWY_INLINE hn::Vec<hn::ScalableTag<float>> uniform_from(hn::Vec<hn::ScalableTag<std::uint64_t>> pair) {
  const hn::ScalableTag<float> d;
  const hn::ScalableTag<std::uint32_t> du;
  constexpr std::uint8_t kZero = 0x80;
  constexpr std::uint8_t kFirst = kUpperHalf ? 4 : 0;
  alignas(16) static constexpr std::uint8_t kBytes[16] = {
      kFirst,     kFirst + 1, kZero, kZero, kFirst + 2,  kFirst + 3,  kZero, kZero,
      kFirst + 8, kFirst + 9, kZero, kZero, kFirst + 10, kFirst + 11, kZero, kZero};
  const hn::ScalableTag<std::uint8_t> d8;
  const auto bytes = hn::LoadDup128(d8, kBytes);
  // As the low mantissa bits of 2^23 + r, from which subtracting leaves no rounding error.
  const auto exponent = hn::Set(du, 0x4b000000);
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  const auto bits =
      hn::Vec<decltype(du)>{_mm512_mask_shuffle_epi8(exponent.raw, 0x3333333333333333, pair.raw, bytes.raw)};
#else
  const auto bits = hn::Or(hn::BitCast(du, hn::TableLookupBytesOr0(hn::BitCast(d8, pair), bytes)), exponent);
#endif
  return hn::Sub(hn::BitCast(d, bits), hn::Set(d, 0x1p23F - 0.5F));
}

}  // namespace HWY_NAMESPACE
}  // namespace thc
HWY_AFTER_NAMESPACE();

#endif
