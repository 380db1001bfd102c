// Packs codes that quantization leaves in 32-bit lanes. No include guard: compiled once per target.
#if defined(THC_CODE_STORE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef THC_CODE_STORE_INL_H
#undef THC_CODE_STORE_INL_H
#else
#define THC_CODE_STORE_INL_H
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "thc/pack.h"

HWY_BEFORE_NAMESPACE();
namespace thc {
namespace HWY_NAMESPACE {
namespace code_store {
namespace hn = hwy::HWY_NAMESPACE;

using DI = hn::ScalableTag<std::int32_t>;
using D64 = hn::ScalableTag<std::uint64_t>;
using VI = hn::Vec<DI>;
inline constexpr std::size_t kLanes = hn::MaxLanes(DI());
inline constexpr std::size_t kGroup = 64;  // coordinates that share eight Philox blocks

/// Codes of the coordinates served by one call of PhiloxStream::pairs(): word w holds coordinates from 16 w.
struct CodeWords {
  VI word[4];
};

#if HWY_TARGET == HWY_AVX3_DL
/// Byte permutations of GroupStore, made once: it is made for every block, which may have 256 coordinates only.
struct GroupOrders {
  std::uint8_t in_order[kGroup] = {};       // of the bytes of CodeWords
  std::uint8_t big_endian[8][kGroup] = {};  // by bits: of 8 joined codes in each lane of 64 bits

  constexpr GroupOrders() {
    for (std::size_t i = 0; i < kGroup; ++i) {
      in_order[i] = static_cast<std::uint8_t>(i % 16 * 4 + i / 16);
    }
    for (std::size_t bits = 1; bits < 8; ++bits) {
      for (std::size_t i = 0; i < 8 * bits; ++i) {
        big_endian[bits][i] = static_cast<std::uint8_t>(i / bits * 8 + bits - 1 - i % bits);
      }
    }
  }
};
inline constexpr GroupOrders kGroupOrders;

/// Packs codes of up to 7 bits in registers, 64 at a time: joins neighbours to 2, 4 and 8 codes, and orders bytes.
class GroupStore {
 public:
  HWY_INLINE GroupStore(std::size_t block_size, unsigned bits, std::uint8_t* packed)
      : packed_(packed),
        whole_vectors_(static_cast<std::ptrdiff_t>(block_size / 8 * bits) - 64),
        bits_(bits),
        bytes_((std::uint64_t{1} << (8 * bits)) - 1),
        joins_pairs_(_mm512_set1_epi16(static_cast<short>(0x100 | 1 << bits))),
        joins_fours_(_mm512_set1_epi32(0x10000 | 1 << (2 * bits))),
        joins_eights_(_mm_cvtsi32_si128(static_cast<int>(4 * bits))) {
    in_order_ = _mm512_loadu_si512(kGroupOrders.in_order);
    big_endian_ = _mm512_loadu_si512(kGroupOrders.big_endian[bits]);
  }

  /// codes: the block's from coordinate i on; i ascends.
  HWY_INLINE void operator()(std::size_t i, const CodeWords& codes) const {
    const VI bytes = hn::Or(hn::Or3(codes.word[0], hn::ShiftLeft<8>(codes.word[1]), hn::ShiftLeft<16>(codes.word[2])),
                            hn::ShiftLeft<24>(codes.word[3]));
    const __m512i ones = _mm512_permutexvar_epi8(in_order_, bytes.raw);
    const __m512i pairs = _mm512_maddubs_epi16(joins_pairs_, ones);
    const __m512i fours = _mm512_madd_epi16(pairs, joins_fours_);
    const __m512i eights = _mm512_or_si512(_mm512_sll_epi64(fours, joins_eights_), _mm512_srli_epi64(fours, 32));
    const __m512i ordered = _mm512_permutexvar_epi8(big_endian_, eights);
    const std::size_t at = i / 8 * bits_;
    if (static_cast<std::ptrdiff_t>(at) <= whole_vectors_) {
      _mm512_storeu_si512(packed_ + at, ordered);  // faster than with a mask; the next group replaces the excess
    } else {
      _mm512_mask_storeu_epi8(packed_ + at, bytes_, ordered);
    }
  }

 private:
  std::uint8_t* packed_;
  std::ptrdiff_t whole_vectors_;  // the last byte at which a vector may be stored
  unsigned bits_;
  __mmask64 bytes_;  // of the 64 codes
  __m512i joins_pairs_;
  __m512i joins_fours_;
  __m128i joins_eights_;
  __m512i in_order_;
  __m512i big_endian_;
};
#endif

#if HWY_TARGET == HWY_AVX2
/// Byte permutations of GroupStore, the same for both blocks of 128 bits.
struct GroupOrders {
  std::uint8_t transposed[kGroup / 2] = {};     // bytes of four lanes: lane w gets bytes w
  std::uint8_t big_endian[8][kGroup / 2] = {};  // by bits: of two times 8 joined codes

  constexpr GroupOrders() {
    for (std::size_t i = 0; i < kGroup / 2; ++i) {
      transposed[i] = static_cast<std::uint8_t>(i % 4 * 4 + i % 16 / 4);
    }
    for (std::size_t bits = 1; bits < 8; ++bits) {
      for (std::size_t i = 0; i < kGroup / 2; ++i) {
        const std::size_t k = i % 16;  // bytes behind the codes are not used
        big_endian[bits][i] = k < 2 * bits ? static_cast<std::uint8_t>(k / bits * 8 + bits - 1 - k % bits) : 0x80;
      }
    }
  }
};
inline constexpr GroupOrders kGroupOrders;

/// Packs codes of up to 7 bits in registers, 64 at a time: joins 8 neighbours of each word in two calls.
class GroupStore {
 public:
  HWY_INLINE GroupStore(std::size_t block_size, unsigned bits, std::uint8_t* packed)
      : packed_(packed),
        whole_vectors_(static_cast<std::ptrdiff_t>(block_size / 8 * bits) - 16),
        bits_(bits),
        joins_pairs_(_mm256_set1_epi16(static_cast<short>(0x100 | 1 << bits))),
        joins_fours_(_mm256_set1_epi32(0x10000 | 1 << (2 * bits))),
        joins_eights_(_mm_cvtsi32_si128(static_cast<int>(4 * bits))) {
    transposed_ = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kGroupOrders.transposed));
    big_endian_ = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kGroupOrders.big_endian[bits]));
  }

  /// codes: the block's from coordinate i on; i ascends.
  HWY_INLINE void operator()(std::size_t i, const CodeWords& codes) const {
    if (i % kGroup == 0) {
      first_ = joined(codes);
      return;
    }
    const __m256i last = joined(codes);
    const __m256i even = _mm256_shuffle_epi8(_mm256_unpacklo_epi64(first_, last), big_endian_);  // words 0 and 2
    const __m256i odd = _mm256_shuffle_epi8(_mm256_unpackhi_epi64(first_, last), big_endian_);
    const std::size_t at = i / kGroup * 8 * bits_;
    store(at, _mm256_castsi256_si128(even));
    store(at + 2 * bits_, _mm256_castsi256_si128(odd));
    store(at + 4 * bits_, _mm256_extracti128_si256(even, 1));
    store(at + 6 * bits_, _mm256_extracti128_si256(odd, 1));
  }

 private:
  /// 8 codes of word w in lane w of 64 bits.
  HWY_INLINE __m256i joined(const CodeWords& codes) const {
    const VI bytes = hn::Or(hn::Or(codes.word[0], hn::ShiftLeft<8>(codes.word[1])),
                            hn::Or(hn::ShiftLeft<16>(codes.word[2]), hn::ShiftLeft<24>(codes.word[3])));
    const __m256i across = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i ones = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(bytes.raw, transposed_), across);
    const __m256i pairs = _mm256_maddubs_epi16(joins_pairs_, ones);
    const __m256i fours = _mm256_madd_epi16(pairs, joins_fours_);
    return _mm256_or_si256(_mm256_sll_epi64(fours, joins_eights_), _mm256_srli_epi64(fours, 32));
  }

  /// 16 codes; the next store replaces the excess.
  HWY_INLINE void store(std::size_t at, __m128i ordered) const {
    if (static_cast<std::ptrdiff_t>(at) <= whole_vectors_) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(packed_ + at), ordered);
    } else {
      std::uint8_t bytes[16];
      _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes), ordered);
      std::memcpy(packed_ + at, bytes, 2 * bits_);
    }
  }

  std::uint8_t* packed_;
  std::ptrdiff_t whole_vectors_;  // the last byte at which a vector may be stored
  unsigned bits_;
  __m256i joins_pairs_;
  __m256i joins_fours_;
  __m128i joins_eights_;
  __m256i transposed_;
  __m256i big_endian_;
  mutable __m256i first_;
};
#endif

/// Packs codes of four bits.
class NibbleStore {
 public:
  HWY_INLINE explicit NibbleStore(std::uint8_t* packed) : packed_(packed) {}

  /// codes: the block's from coordinate i on, as many as have a lane.
  HWY_INLINE void operator()(std::size_t i, const CodeWords& codes) const {
    std::uint8_t* packed = packed_ + i / 2;
    if constexpr (kLanes == 16) {
      // One code per byte, word 0 lowest; then pairs of lanes as nibbles in the lower half of every 64-bit lane.
      const VI bytes = hn::Or(hn::Or3(codes.word[0], hn::ShiftLeft<8>(codes.word[1]), hn::ShiftLeft<16>(codes.word[2])),
                              hn::ShiftLeft<24>(codes.word[3]));
      const auto pairs = hn::BitCast(D64(), bytes);
      const auto nibbles = hn::Or(hn::ShiftLeft<4>(pairs), hn::ShiftRight<32>(pairs));
      // Byte w of the lower half of lane p belongs at 8 w + p: transposed in blocks of 128 bits, then across them.
      const hn::Rebind<std::uint32_t, D64> d32;
      const hn::Repartition<std::uint8_t, decltype(d32)> d8;
      alignas(16) static constexpr std::uint8_t kTransposed[16] = {0, 4, 8,  12, 1, 5, 9,  13,
                                                                   2, 6, 10, 14, 3, 7, 11, 15};
      alignas(32) static constexpr std::uint32_t kAcross[8] = {0, 4, 1, 5, 2, 6, 3, 7};
      const auto words = hn::BitCast(d8, hn::TruncateTo(d32, nibbles));
      const auto in_blocks = hn::TableLookupBytes(words, hn::LoadDup128(d8, kTransposed));
      const auto ordered = hn::TableLookupLanes(hn::BitCast(d32, in_blocks), hn::SetTableIndices(d32, kAcross));
      hn::StoreU(hn::BitCast(d8, ordered), d8, packed);
    } else {
      for (std::size_t w = 0; w < 4; ++w) {
        const auto pairs = hn::BitCast(D64(), codes.word[w]);
        const auto bytes = hn::Or(hn::ShiftLeft<4>(pairs), hn::ShiftRight<32>(pairs));
        const hn::Rebind<std::uint8_t, D64> d8;
        hn::StoreU(hn::TruncateTo(d8, bytes), d8, packed + 8 * w);
      }
    }
  }

 private:
  std::uint8_t* packed_;
};

/// Packs codes of any width: collects them in bytes, and packs those. Codes of 8 bits are bytes where they belong.
class BufferedStore {
 public:
  HWY_INLINE BufferedStore(std::size_t block_size, unsigned bits, std::uint8_t* packed)
      : packed_(packed),
        bits_(bits),
        codes_(bits == 8 ? packed : buffer_),
        at_once_(bits == 8 ? block_size : std::min(block_size, kMostBuffered)) {}

  HWY_INLINE void operator()(std::size_t i, const CodeWords& codes) const {
    const hn::Rebind<std::uint8_t, DI> d8;
    for (std::size_t w = 0; w < 4; ++w) {
      hn::StoreU(hn::DemoteTo(d8, codes.word[w]), d8, codes_ + i % at_once_ + 16 * w);
    }
    const std::size_t end = i / kGroup * kGroup + kGroup;
    const bool is_last = i % kGroup + kLanes == 16;  // of the group
    if (bits_ != 8 && is_last && end % at_once_ == 0) {
      thc::pack(buffer_, at_once_, bits_, packed_ + (end - at_once_) / 8 * bits_);
    }
  }

 private:
  static constexpr std::size_t kMostBuffered = 1024;

  std::uint8_t* packed_;
  unsigned bits_;
  std::uint8_t buffer_[kMostBuffered];
  std::uint8_t* codes_;
  std::size_t at_once_;  // this and the size of a block are powers of two, and multiples of kGroup
};

/// Calls work(store) with the fastest store for that many bits.
template <class Work>
HWY_INLINE void with_store(std::size_t block_size, unsigned bits, std::uint8_t* packed, Work work) {
  if (bits == 4) {
    work(NibbleStore(packed));
    return;
  }
#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX2
  if (bits < 8) {
    work(GroupStore(block_size, bits, packed));
    return;
  }
#endif
  work(BufferedStore(block_size, bits, packed));
}

}  // namespace code_store
}  // namespace HWY_NAMESPACE
}  // namespace thc
HWY_AFTER_NAMESPACE();

#endif
