// Exact Walsh-Hadamard transform of a block of bytes with AVX-512. No include guard: compiled once per target.
// Integers do not round, so stages may run in any order. Pass 1 transforms bit 0 of a coordinate's index (bytes become
// 16 bits) and bits 9..12; pass 2 bits 6..8, bit 1 (16 bits become 32) and, as floats, bits 2..5.
#if defined(THC_INTEGER_HADAMARD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef THC_INTEGER_HADAMARD_INL_H
#undef THC_INTEGER_HADAMARD_INL_H
#else
#define THC_INTEGER_HADAMARD_INL_H
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "thc/hadamard-inl.h"

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace thc {
namespace HWY_NAMESPACE {

/// Coordinates of the one block size that is worth a kernel of its own, the default.
inline constexpr std::size_t kIntegerBlock = 8192;

namespace integer_hadamard {
namespace hn = hwy::HWY_NAMESPACE;

using D16 = hn::ScalableTag<std::int16_t>;
using V16 = hn::Vec<D16>;

inline constexpr std::size_t kRow = 64;     // coordinates of a vector of bytes
inline constexpr std::size_t kColumns = 8;  // rows that pass 2 combines (bits 6..8)
inline constexpr std::size_t kGroups = 16;  // groups of such rows, combined by pass 1 (bits 9..12)
inline constexpr std::size_t kGroupCodes = kRow * kColumns;
static_assert(kGroupCodes * kGroups == kIntegerBlock);

/// +1, -1, +1, ...: the second output of a butterfly of neighbours.
HWY_INLINE __m512i alternating_bytes() { return _mm512_set1_epi16(static_cast<std::int16_t>(0xff01)); }
HWY_INLINE __m512i alternating_words() { return _mm512_set1_epi32(static_cast<std::int32_t>(0xffff0001)); }

/// Scratch of both passes: for each group and bit 0, the rows of the group, every second coordinate in 16 bits.
HWY_INLINE std::int16_t* scratch_row(std::int16_t* scratch, std::size_t group, std::size_t bit0, std::size_t column) {
  return scratch + ((2 * group + bit0) * kColumns + column) * (kRow / 2);
}

/// Pass 1 of one column for one value of bit 0; `widen` does the butterfly of that bit.
template <class Widen>
HWY_INLINE void first_pass(const std::uint8_t* sums, std::size_t column, std::size_t bit0, Widen widen,
                           std::int16_t* scratch) {
  V16 v[kGroups];
#pragma GCC unroll 16
  for (std::size_t group = 0; group < kGroups; ++group) {
    v[group] = widen(_mm512_loadu_si512(sums + group * kGroupCodes + column * kRow));
  }
  butterflies(v);
#pragma GCC unroll 16
  for (std::size_t group = 0; group < kGroups; ++group) {
    hn::Store(v[group], D16(), scratch_row(scratch, group, bit0, column));
  }
}

/// Bits 2..5 of a row of 64 coordinates. Before: v[b0 + 2 * b1], lanes b2..b5; after: v[b4 + 2 * b5], lanes b0..b3.
HWY_INLINE void lane_stages(VF (&v)[4]) {
  const auto as_double = [](VF x) HWY_ATTR { return _mm512_castps_pd(x.raw); };
  const auto butterfly = [](__m512 low, __m512 high, VF& sum, VF& difference) HWY_ATTR {
    sum = hn::Add(VF{low}, VF{high});
    difference = subtract(VF{low}, VF{high});
  };
  VF w[4];
  // Bit 3; bit 0 enters the lanes: w[b1 + 2 * b3], lanes b0, b2, b4, b5.
  for (std::size_t b1 = 0; b1 < 2; ++b1) {
    const __m512 a = v[2 * b1].raw;
    const __m512 b = v[2 * b1 + 1].raw;
    butterfly(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b), w[b1], w[b1 + 2]);
  }
  // Bit 2; bit 1 enters the lanes: v[b2 + 2 * b3], lanes b0, b1, b4, b5.
  for (std::size_t b3 = 0; b3 < 2; ++b3) {
    const __m512d a = as_double(w[2 * b3]);
    const __m512d b = as_double(w[2 * b3 + 1]);
    butterfly(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)), v[2 * b3],
              v[2 * b3 + 1]);
  }
  // Bit 4; bit 2 enters the lanes: w[b3 + 2 * b4], lanes b0, b1, b5, b2.
  for (std::size_t b3 = 0; b3 < 2; ++b3) {
    const __m512 a = v[2 * b3].raw;
    const __m512 b = v[2 * b3 + 1].raw;
    butterfly(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd), w[b3], w[b3 + 2]);
  }
  // Bit 5; bit 3 enters the lanes: v[b4 + 2 * b5], lanes b0, b1, b2, b3.
  for (std::size_t b4 = 0; b4 < 2; ++b4) {
    const __m512 a = w[2 * b4].raw;
    const __m512 b = w[2 * b4 + 1].raw;
    butterfly(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd), v[b4], v[b4 + 2]);
  }
}

/// Pass 2 of one group of rows.
template <class Store>
HWY_INLINE void second_pass(const std::int16_t* rows, std::size_t group, Store store) {
  V16 even[kColumns];
  V16 odd[kColumns];
#pragma GCC unroll 8
  for (std::size_t column = 0; column < kColumns; ++column) {
    even[column] = hn::Load(D16(), rows + column * (kRow / 2));
    odd[column] = hn::Load(D16(), rows + (kColumns + column) * (kRow / 2));
  }
  butterflies(even);
  butterflies(odd);
  const __m512i ones = _mm512_set1_epi16(1);
  const __m512i alternating = alternating_words();
#pragma GCC unroll 8
  for (std::size_t column = 0; column < kColumns; ++column) {
    const auto widen = [](V16 x, __m512i factors)
                           HWY_ATTR { return VF{_mm512_cvtepi32_ps(_mm512_madd_epi16(x.raw, factors))}; };
    VF v[4] = {widen(even[column], ones), widen(odd[column], ones), widen(even[column], alternating),
               widen(odd[column], alternating)};
    lane_stages(v);
#pragma GCC unroll 4
    for (std::size_t quarter = 0; quarter < 4; ++quarter) {
      store(group * kGroupCodes + column * kRow + quarter * 16, v[quarter]);
    }
  }
}

}  // namespace integer_hadamard

/// Part of coordinate 0 that the transform below omits.
inline constexpr float kIntegerOffset = 128.0F * kIntegerBlock;

/// Calls store(coordinate, vector of floats) with H sums - kIntegerOffset * e0 of sums[kIntegerBlock], exactly, after
/// all loads. scratch: kIntegerBlock 16-bit integers, aligned.
template <class Store>
HWY_INLINE void integer_hadamard_block(const std::uint8_t* sums, std::int16_t* scratch, Store store) {
  using namespace integer_hadamard;
  // Sums of 256 bytes of -128..127 fit 16 bits. Moving all by 128 only changes coordinate 0 of the transform.
  const __m512i moved = _mm512_set1_epi16(-2 * 128);
  for (std::size_t column = 0; column < kColumns; ++column) {
    const auto sum = [moved](__m512i bytes) HWY_ATTR {
      return V16{_mm512_add_epi16(_mm512_maddubs_epi16(bytes, _mm512_set1_epi8(1)), moved)};
    };
    const auto difference = [](__m512i bytes)
                                HWY_ATTR { return V16{_mm512_maddubs_epi16(bytes, alternating_bytes())}; };
    first_pass(sums, column, 0, sum, scratch);
    first_pass(sums, column, 1, difference, scratch);
  }
  for (std::size_t group = 0; group < kGroups; ++group) {
    second_pass(scratch_row(scratch, group, 0, 0), group, store);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace thc
HWY_AFTER_NAMESPACE();
#endif  // AVX-512

#endif
