// Rounding bits in vectors of floats, and what is known of the error they make. No include guard: once per target.
#if defined(THC_ROUNDING_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef THC_ROUNDING_INL_H
#undef THC_ROUNDING_INL_H
#else
#define THC_ROUNDING_INL_H
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "thc/known_error.h"

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

/// KnownError on vectors: in registers where they hold it, else by gathers.
class KnownErrorLookup {
 public:
  HWY_INLINE explicit KnownErrorLookup(const KnownError* known) : known_(*known) {}

  /// uniform: r + 0.5 for 16 random bits r.
  HWY_INLINE hn::Vec<hn::ScalableTag<float>> at(hn::Vec<hn::ScalableTag<float>> uniform) const {
    const hn::ScalableTag<std::int32_t> di;
    const auto piece = hn::ShiftRight<KnownError::kPieceShift>(hn::ConvertTo(di, uniform));
    return hn::Add(entry(known_.offset.data(), piece), hn::Mul(entry(known_.slope.data(), piece), uniform));
  }

 private:
  template <class VI>
  static HWY_INLINE hn::Vec<hn::ScalableTag<float>> entry(const float* entries, VI piece) {
    const hn::ScalableTag<float> d;
    [[maybe_unused]] const hn::ScalableTag<std::int32_t> di;
    if constexpr (hn::MaxLanes(d) == KnownError::kPieces) {
      return hn::TableLookupLanes(hn::LoadU(d, entries), hn::IndicesFromVec(d, piece));
    } else if constexpr (2 * hn::MaxLanes(d) == KnownError::kPieces) {
      const auto last = hn::Set(di, KnownError::kPieces / 2 - 1);
      const auto lane = hn::IndicesFromVec(d, hn::And(piece, last));
      const auto upper = hn::TableLookupLanes(hn::LoadU(d, entries + hn::MaxLanes(d)), lane);
      const auto lower = hn::TableLookupLanes(hn::LoadU(d, entries), lane);
      return hn::IfThenElse(hn::RebindMask(d, hn::Gt(piece, last)), upper, lower);
    } else {
      return hn::GatherIndex(d, entries, piece);
    }
  }

  KnownError known_;
};

}  // namespace HWY_NAMESPACE
}  // namespace thc
HWY_AFTER_NAMESPACE();

#endif
