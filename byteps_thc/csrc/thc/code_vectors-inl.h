// Packed codes to a byte each, and tables of bytes looked up by them. No include guard: compiled once per target.
#if defined(THC_CODE_VECTORS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef THC_CODE_VECTORS_INL_H
#undef THC_CODE_VECTORS_INL_H
#else
#define THC_CODE_VECTORS_INL_H
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "thc/pack.h"

HWY_BEFORE_NAMESPACE();
namespace thc {
namespace HWY_NAMESPACE {
namespace code_vectors {
namespace hn = hwy::HWY_NAMESPACE;

using D8 = hn::ScalableTag<std::uint8_t>;
using D16 = hn::ScalableTag<std::uint16_t>;
using V8 = hn::Vec<D8>;
using V16 = hn::Vec<D16>;
inline constexpr std::size_t kVectorCodes = hn::MaxLanes(D8());
inline constexpr std::size_t kBlockBytes = 16;  // byte shuffles stay within as much
inline constexpr std::size_t kBlocks = kVectorCodes / kBlockBytes;

/// Reads kVectorCodes codes of 8 bits.
class ByteReader {
 public:
  HWY_INLINE explicit ByteReader(unsigned /*bits*/) {}
  /// Whether `count` codes are enough for a read, which reads nothing behind them.
  HWY_INLINE bool fits(std::size_t count) const { return count >= kVectorCodes; }
  HWY_INLINE V8 operator()(const std::uint8_t* packed) const { return hn::LoadU(D8(), packed); }
};

/// The same for codes of 4 bits.
class NibbleReader {
 public:
  HWY_INLINE explicit NibbleReader(unsigned /*bits*/) {}
  HWY_INLINE bool fits(std::size_t count) const { return count >= kVectorCodes; }
  HWY_INLINE V8 operator()(const std::uint8_t* packed) const {
    const hn::Rebind<std::uint8_t, D16> half;
    const V16 byte = hn::PromoteTo(D16(), hn::LoadU(half, packed));
    const V16 second = hn::And(hn::ShiftLeft<8>(byte), hn::Set(D16(), 0x0f00));
    return hn::BitCast(D8(), hn::Or(hn::ShiftRight<4>(byte), second));
  }
};

#if HWY_TARGET == HWY_AVX3_DL
/// Orders and shifts of FieldReader by bits of a code, made once: packets have few codes.
struct FieldOrders {
  std::uint8_t sources[8][kVectorCodes] = {};
  std::uint8_t shifts[8][kVectorCodes] = {};

  constexpr FieldOrders() {
    for (std::size_t bits = 1; bits < 8; ++bits) {
      for (std::size_t i = 0; i < kVectorCodes; ++i) {
        const std::size_t byte = i % 8;  // of the lane, the lowest first
        sources[bits][i] = static_cast<std::uint8_t>(byte < bits ? i / 8 * bits + bits - 1 - byte : 0);
        shifts[bits][i] = static_cast<std::uint8_t>((7 - byte) * bits);
      }
    }
  }
};
inline constexpr FieldOrders kFieldOrders;

/// The same for codes of up to 7 bits: each byte of a 64-bit lane gets 8 bits that end with its code, the upper ones of
/// which are the code's neighbours.
class FieldReader {
 public:
  HWY_INLINE explicit FieldReader(unsigned bits) : bytes_((std::uint64_t{1} << (8 * bits)) - 1) {
    sources_ = _mm512_loadu_si512(kFieldOrders.sources[bits]);
    shifts_ = _mm512_loadu_si512(kFieldOrders.shifts[bits]);
  }
  HWY_INLINE bool fits(std::size_t count) const { return count >= kVectorCodes; }
  HWY_INLINE V8 operator()(const std::uint8_t* packed) const {
    const __m512i lanes = _mm512_permutexvar_epi8(sources_, _mm512_maskz_loadu_epi8(bytes_, packed));
    return V8{_mm512_multishift_epi64_epi8(shifts_, lanes)};
  }

 private:
  __mmask64 bytes_;  // of as many codes
  __m512i sources_;
  __m512i shifts_;
};
#else
/// The same for codes of up to 7 bits: each 16-bit lane gets the two bytes of its code, even and odd codes in a vector
/// each, and shifts the other bits out.
class FieldReader {
 public:
  HWY_INLINE explicit FieldReader(unsigned bits) : bits_(bits), right_(static_cast<int>(16 - bits)) {
    even_ = window(0);
    odd_ = window(1);
  }
  HWY_INLINE bool fits(std::size_t count) const {
    return count >= kVectorCodes && code_bytes(count, bits_) >= (kBlocks - 1) * 2 * bits_ + kBlockBytes;
  }
  HWY_INLINE V8 operator()(const std::uint8_t* packed) const {
    const V8 stream = load_blocks(D8(), packed);
    const V16 even = hn::ShiftRightSame(at_top(even_, stream), right_);
    const V16 odd = hn::ShiftRightSame(at_top(odd_, stream), right_);
    return hn::BitCast(D8(), hn::Or(even, hn::ShiftLeft<8>(odd)));
  }

 private:
  struct Window {
    V8 sources;
    V16 factors;  // shift left
  };

  /// Window of codes `first`, `first` + 2, ... of each block.
  HWY_INLINE Window window(std::size_t first) const {
    std::uint8_t sources[kBlockBytes];
    std::uint16_t factors[kBlockBytes / 2];
    for (std::size_t lane = 0; lane < kBlockBytes / 2; ++lane) {
      const std::size_t bit = (first + 2 * lane) * bits_;
      sources[2 * lane + 1] = static_cast<std::uint8_t>(bit / 8);
      sources[2 * lane] = static_cast<std::uint8_t>(bit / 8 + 1);
      factors[lane] = static_cast<std::uint16_t>(1U << (bit % 8));
    }
    return {hn::LoadDup128(D8(), sources), hn::LoadDup128(D16(), factors)};
  }
  static HWY_INLINE V16 at_top(const Window& window, V8 stream) {
    return hn::Mul(hn::BitCast(D16(), hn::TableLookupBytes(stream, window.sources)), window.factors);
  }
  /// Blocks of the stream, each from where its codes begin.
  template <class D>
  HWY_INLINE hn::Vec<D> load_blocks(D d, const std::uint8_t* packed) const {
    if constexpr (hn::MaxLanes(D()) == kBlockBytes) {
      return hn::LoadU(d, packed);
    } else {
      const hn::Half<D> half;
      const std::size_t half_codes = hn::MaxLanes(half);
      return hn::Combine(d, load_blocks(half, packed + half_codes / 8 * bits_), load_blocks(half, packed));
    }
  }

  unsigned bits_;
  int right_;
  Window even_;
  Window odd_;
};
#endif

/// Tables of kValues bytes, 16 or more, held in registers and looked up by bytes.
template <std::size_t kValues>
class ByteTable {
 public:
#if HWY_TARGET == HWY_AVX3_DL
  // Permutations take 6 or 7 bits of an index: tables of less are repeated, so bits above the code may be anything.
  static constexpr std::size_t kHeld = kValues == 32 ? 64 : kValues;
#else
  static constexpr std::size_t kHeld = kValues;
#endif
  /// bytes: kHeld values.
  HWY_INLINE explicit ByteTable(const std::uint8_t* bytes) {
    for (std::size_t i = 0; i < kVectors; ++i) {
      vectors_[i] =
          kStride == kBlockBytes ? hn::LoadDup128(D8(), bytes + i * kStride) : hn::LoadU(D8(), bytes + i * kStride);
    }
  }
  /// bytes[code], a lane each.
  HWY_INLINE V8 operator[](V8 codes) const { return lookup<0, kVectors>(codes); }

 private:
#if HWY_TARGET == HWY_AVX3_DL
  static constexpr std::size_t kStride = kHeld < 64 ? kBlockBytes : 64;
#else
  static constexpr std::size_t kStride = kBlockBytes;
#endif
  static constexpr std::size_t kVectors = kHeld / kStride;

  /// The code's low bits select a byte within a vector, the bits above them one of `kCount` vectors.
  template <std::size_t kFirst, std::size_t kCount>
  HWY_INLINE V8 lookup(V8 codes) const {
#if HWY_TARGET == HWY_AVX3_DL
    if constexpr (kVectors == 1) {
      return V8{_mm512_permutexvar_epi8(codes.raw, vectors_[0].raw)};
    } else if constexpr (kCount == 2) {
      return V8{_mm512_permutex2var_epi8(vectors_[kFirst].raw, codes.raw, vectors_[kFirst + 1].raw)};
    }
#else
    if constexpr (kCount == 1) {
      const V8 byte = kVectors == 1 ? codes : hn::And(codes, hn::Set(D8(), kBlockBytes - 1));
      return hn::TableLookupBytes(vectors_[kFirst], byte);
    }
#endif
    else {
      const V8 lower = lookup<kFirst, kCount / 2>(codes);
      const V8 upper = lookup<kFirst + kCount / 2, kCount / 2>(codes);
      constexpr int kToTop = 7 - hwy::CeilLog2(kCount / 2 * kStride);
      // Shifting bytes as pairs leaves only their uppermost bit right, which is the sign.
      const hn::RebindToSigned<D8> di8;
      const auto select = hn::BitCast(di8, hn::ShiftLeft<kToTop>(hn::BitCast(D16(), codes)));
      return hn::BitCast(D8(), hn::IfNegativeThenElse(select, hn::BitCast(di8, upper), hn::BitCast(di8, lower)));
    }
  }

  V8 vectors_[kVectors];
};

}  // namespace code_vectors
}  // namespace HWY_NAMESPACE
}  // namespace thc
HWY_AFTER_NAMESPACE();

#endif
