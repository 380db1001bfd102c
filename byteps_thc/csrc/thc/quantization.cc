#include "thc/quantization.h"

#include <cstring>
#include <type_traits>

#include "thc/bit_stream.h"
#include "thc/clamp_range.h"
#include "thc/interval_table.h"
#include "thc/pack.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thc/quantization.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "thc/philox-inl.h"
#include "thc/rounding-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thc {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DI = hn::ScalableTag<std::int32_t>;
using DU = hn::ScalableTag<std::uint32_t>;
using D64 = hn::ScalableTag<std::uint64_t>;
using D16 = hn::ScalableTag<std::uint16_t>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;
inline constexpr std::size_t kLanes = hn::MaxLanes(DF());
inline constexpr std::size_t kGroup = 64;  // coordinates that share eight Philox blocks

/// Integer part of values in 0..65535; spares the check for overflow of hn::ConvertTo.
HWY_INLINE VI integer_part(VF u) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  return VI{_mm512_cvttps_epi32(u.raw)};
#elif HWY_TARGET == HWY_AVX2
  return VI{_mm256_cvttps_epi32(u.raw)};
#else
  return hn::ConvertTo(DI(), u);
#endif
}

/// 16 words of some type, looked up by lane index: in registers where they hold it, else by gathers.
template <class D>
class SixteenWords {
 public:
  HWY_INLINE explicit SixteenWords(const hn::TFromD<D>* words)
      : low_(hn::LoadU(D(), words)), high_(hn::LoadU(D(), words + kLanes % 16)) {}
  /// words[index], index in 0..15.
  HWY_INLINE hn::Vec<D> operator[](VI index) const {
    if constexpr (kLanes == 16) {
      return hn::TableLookupLanes(low_, hn::IndicesFromVec(D(), index));
    } else {
      const auto lane = hn::IndicesFromVec(D(), hn::And(index, hn::Set(DI(), 7)));
      const auto in_high = hn::RebindMask(D(), hn::Gt(index, hn::Set(DI(), 7)));
      return hn::IfThenElse(in_high, hn::TableLookupLanes(high_, lane), hn::TableLookupLanes(low_, lane));
    }
  }

 private:
  hn::Vec<D> low_;
  hn::Vec<D> high_;  // words 8..15 where a vector has 8 lanes
};

/// Looks intervals up in registers. Needs IntervalTable::fits_registers() and 8 or 16 lanes.
class RegisterLookup {
 public:
  HWY_INLINE explicit RegisterLookup(const IntervalTable& table)
      : values_(table.values()), inverse_gaps_(table.inverse_gaps()), nibbles_(signed_words(table)) {}
  HWY_INLINE VI interval(VI floor) const {
    const VI word = nibbles_[hn::ShiftRight<3>(floor)];
    const VI shift = hn::ShiftLeft<2>(hn::And(floor, hn::Set(DI(), 7)));
    return hn::And(hn::BitCast(DI(), hn::BitCast(DU(), word) >> hn::BitCast(DU(), shift)), hn::Set(DI(), 15));
  }
  HWY_INLINE VF value(VI code) const { return values_[code]; }
  HWY_INLINE VF inverse_gap(VI interval) const { return inverse_gaps_[interval]; }

 private:
  static const std::int32_t* signed_words(const IntervalTable& table) {
    return reinterpret_cast<const std::int32_t*>(table.interval_nibbles());
  }
  SixteenWords<DF> values_;
  SixteenWords<DF> inverse_gaps_;
  SixteenWords<DI> nibbles_;
};

#if HWY_TARGET == HWY_AVX3_DL
/// The same on grids of up to 64 points, with one byte permutation for the interval.
class ByteLookup {
 public:
  HWY_INLINE explicit ByteLookup(const IntervalTable& table)
      : values_(table.values()),
        inverse_gaps_(table.inverse_gaps()),
        bytes_{_mm512_loadu_si512(table.interval_bytes())} {}
  // The three upper bytes of a lane are zero and look up interval 0, so the result needs no mask.
  HWY_INLINE VI interval(VI floor) const { return VI{_mm512_permutexvar_epi8(floor.raw, bytes_.raw)}; }
  HWY_INLINE VF value(VI code) const { return values_[code]; }
  HWY_INLINE VF inverse_gap(VI interval) const { return inverse_gaps_[interval]; }

 private:
  SixteenWords<DF> values_;
  SixteenWords<DF> inverse_gaps_;
  VI bytes_;
};
#endif

/// Looks intervals up in memory: any table.
class GatherLookup {
 public:
  HWY_INLINE explicit GatherLookup(const IntervalTable& table) : table_(table) {}
  HWY_INLINE VI interval(VI floor) const { return hn::GatherIndex(DI(), table_.interval_of(), floor); }
  HWY_INLINE VF value(VI code) const { return hn::GatherIndex(DF(), table_.values(), code); }
  HWY_INLINE VF inverse_gap(VI interval) const { return hn::GatherIndex(DF(), table_.inverse_gaps(), interval); }

 private:
  const IntervalTable& table_;
};

/// Codes of the coordinates that one call of PhiloxStream::pairs() serves: word w holds coordinates from 16 w.
struct CodeWords {
  VI word[4];
};

/// Packs codes of four bits in 32-bit lanes, first code in the upper nibble; `packed` is where those of word 0 belong.
HWY_INLINE void store_nibbles(const CodeWords& codes, std::uint8_t* packed) {
  if constexpr (kLanes == 16) {
    // One code per byte, word 0 lowest; then pairs of lanes as nibbles in the lower half of every 64-bit lane.
    const VI bytes = hn::Or(hn::Or3(codes.word[0], hn::ShiftLeft<8>(codes.word[1]), hn::ShiftLeft<16>(codes.word[2])),
                            hn::ShiftLeft<24>(codes.word[3]));
    const auto pairs = hn::BitCast(D64(), bytes);
    const auto nibbles = hn::Or(hn::ShiftLeft<4>(pairs), hn::ShiftRight<32>(pairs));
    // Byte w of the lower half of lane p belongs at 8 w + p: transposed in blocks of 128 bits, then across them.
    const hn::Rebind<std::uint32_t, D64> d32;
    const hn::Repartition<std::uint8_t, decltype(d32)> d8;
    alignas(16) static constexpr std::uint8_t kTransposed[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
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

/// What becomes of the coordinates that are quantized.
enum class Kept { kNothing, kError, kUnknownError };

/// Quantizes coordinates of one block.
template <class Lookup, Kept kKept>
class BlockQuantizer {
 public:
  HWY_INLINE BlockQuantizer(const IntervalTable& table, const ClampRange& range, const KnownError* known)
      : lookup_(table), range_(range), known_(known), granularity_(table.granularity()) {}

  /// Codes of the vector at x in 32-bit lanes; overwrites x with the error if kKept says so. random: rounding bits, in
  /// one half of every lane.
  template <bool kUpperHalf>
  HWY_INLINE VI quantize(float* at, hn::Vec<D64> random) {
    const DF d;
    const VF x = hn::LoadU(d, at);
    const VF u = clamped_position(x);
    const VI z = lookup_.interval(integer_part(u));
    const VF fraction = hn::Mul(hn::Sub(u, lookup_.value(z)), lookup_.inverse_gap(z));
    const VF chance = uniform_from<kUpperHalf>(random);
    const auto up = hn::RebindMask(DI(), hn::Lt(chance, fraction));
    const VI code = hn::IfThenElse(up, hn::Add(z, hn::Set(DI(), 1)), z);
    if constexpr (kKept != Kept::kNothing) {
      VF value = lookup_.value(code);
      if constexpr (kKept == Kept::kUnknownError) {
        value = hn::Sub(value, known_.at(chance));
      }
      const VF quantized = hn::Sub(hn::Mul(value, hn::Set(d, range_.step)), hn::Set(d, range_.limit));
      hn::StoreU(hn::Sub(x, quantized), d, at);
    }
    return code;
  }

  std::size_t clamped() const { return clamped_; }

 private:
  HWY_INLINE VF position(VF x) const {
    return hn::Add(hn::Mul(x, hn::Set(DF(), range_.scale)), hn::Set(DF(), granularity_ * 0.5F));
  }

  /// Position of x on the grid after clamping; counts it if it was clamped.
  HWY_INLINE VF clamped_position(VF x) {
    const DF d;
    const VF limit = hn::Set(d, range_.limit);
#if HWY_TARGET == HWY_AVX3_DL
    if constexpr (std::is_same_v<Lookup, ByteLookup>) {
      // Clamping x instead of its position takes one instruction. Positions then miss 0 and g by up to 2^-17.4, for
      // g < 64; in the first and last interval no random bits (2^-17 from its ends, at least) tell the difference.
      constexpr int kSmallerMagnitude = 2;
      const VF inside{_mm512_range_ps(x.raw, limit.raw, kSmallerMagnitude)};
      clamped_ += hn::CountTrue(d, hn::MFromD<DF>{_mm512_cmp_ps_mask(inside.raw, x.raw, _CMP_NEQ_OQ)});
      return position(inside);
    }
#endif
    clamped_ += hn::CountTrue(d, hn::Gt(hn::Abs(x), limit));
    return hn::Min(hn::Max(position(x), hn::Zero(d)), hn::Set(d, granularity_));
  }

  /// Nothing where the error is kept whole.
  struct NoLookup {
    HWY_INLINE explicit NoLookup(const KnownError* /*known*/) {}
  };

  Lookup lookup_;
  ClampRange range_;
  std::conditional_t<kKept == Kept::kUnknownError, KnownErrorLookup, NoLookup> known_;
  float granularity_;
  std::size_t clamped_ = 0;
};

/// A block and the coordinate of the partition it starts at.
struct BlockPosition {
  float* x;
  std::size_t offset;
  std::size_t size;
};

/// Brings the floats x[0 .. kGroup - 1] into L2.
HWY_INLINE void prefetch_group(const float* x) {
  constexpr std::size_t kLineFloats = 16;
  for (std::size_t i = 0; i < kGroup; i += kLineFloats) {
    __builtin_prefetch(x + i, 0, 2);
  }
}

/// Calls store(coordinate within the block, codes) for every CodeWords of the block.
template <class Quantizer, class Store>
HWY_INLINE void quantize_vectors(Quantizer& quantizer, const BlockPosition& block, const QuantizeOptions& options,
                                 Store store) {
  const D64 d64;
  constexpr std::size_t kPhiloxLanes = hn::MaxLanes(D64());
  const PhiloxStream<kRoundingRounds> stream(options.key, options.rounding.domain);
  const auto phase = hn::Set(D16(), options.rounding.phase);
  auto index = stream.indices(d64, static_cast<std::uint32_t>((options.key.first + block.offset) / 8));
  const auto step = hn::Set(d64, kPhiloxLanes);
  // Bits are generated one step ahead: the long chain of the generator then runs beside the quantization.
  auto next = stream.pairs(d64, index);
  const float* next_gradient = options.next_gradient == nullptr ? block.x : options.next_gradient + block.offset;
  const float* next_residual = options.next_residual == nullptr ? block.x : options.next_residual + block.offset;
  for (std::size_t group = 0; group < block.size; group += kGroup) {
    prefetch_group(next_gradient + group);
    prefetch_group(next_residual + group);
    for (std::size_t part = 0; part < 8; part += kPhiloxLanes) {
      const auto random = next;
      index = hn::Add(index, step);
      next = stream.pairs(d64, index);
      CodeWords codes;
#pragma GCC unroll 2
      for (std::size_t p = 0; p < 2; ++p) {
        const auto bits = hn::BitCast(d64, hn::Add(hn::BitCast(D16(), random.pair[p]), phase));
        float* x = block.x + group + 32 * p + 2 * part;
        codes.word[2 * p] = quantizer.template quantize<true>(x, bits);
        codes.word[2 * p + 1] = quantizer.template quantize<false>(x + 16, bits);
      }
      store(group + 2 * part, codes);
    }
  }
}

template <class Lookup, Kept kKept>
HWY_NOINLINE std::size_t quantize_block(const IntervalTable& intervals, unsigned bits, const ClampRange& range,
                                        const BlockPosition& block, const QuantizeOptions& options,
                                        std::uint8_t* codes) {
  BlockQuantizer<Lookup, kKept> quantizer(intervals, range, options.known);
  if (bits == 4) {
    quantize_vectors(quantizer, block, options,
                     [codes](std::size_t i, const CodeWords& words) HWY_ATTR { store_nibbles(words, codes + i / 2); });
    return quantizer.clamped();
  }
  constexpr std::size_t kMostUnpacked = 1024;
  std::uint8_t unpacked[kMostUnpacked];
  const std::size_t at_once = std::min(block.size, kMostUnpacked);  // both powers of two, and multiples of kGroup
  quantize_vectors(quantizer, block, options, [&](std::size_t i, const CodeWords& words) HWY_ATTR {
    const hn::Rebind<std::uint8_t, DI> d8;
    for (std::size_t w = 0; w < 4; ++w) {
      hn::StoreU(hn::DemoteTo(d8, words.word[w]), d8, unpacked + i % at_once + 16 * w);
    }
    const std::size_t end = i / kGroup * kGroup + kGroup;
    if (i % kGroup + kLanes == 16 && end % at_once == 0) {  // the last vectors
      thc::pack(unpacked, at_once, bits, codes + (end - at_once) / 8 * bits);
    }
  });
  return quantizer.clamped();
}

template <class Lookup>
HWY_INLINE std::size_t quantize_block(const IntervalTable& intervals, unsigned bits, const ClampRange& range,
                                      const BlockPosition& block, const QuantizeOptions& options, std::uint8_t* codes) {
  if (!options.keep_error) {
    return quantize_block<Lookup, Kept::kNothing>(intervals, bits, range, block, options, codes);
  }
  return options.known == nullptr
             ? quantize_block<Lookup, Kept::kError>(intervals, bits, range, block, options, codes)
             : quantize_block<Lookup, Kept::kUnknownError>(intervals, bits, range, block, options, codes);
}

HWY_ATTR std::size_t quantize(float* rotated, const float* max_norms, const BlockLayout& layout,
                              const LookupTable& table, const QuantizeOptions& options, std::uint8_t* codes) {
  const IntervalTable intervals(table);
  std::size_t clamped = 0;
  for (std::size_t b = 0; b < layout.blocks(); ++b) {
    const BlockPosition block{rotated + layout.offset(b), layout.offset(b), layout.size(b)};
    std::uint8_t* block_codes = codes + code_bytes(block.offset, table.bits());
    float max_norm = 0;
    std::memcpy(&max_norm, max_norms + b, sizeof(max_norm));
    const ClampRange range(max_norm, options.threshold, table.granularity());
    if (!range.finite) {
      std::memset(block_codes, 0, code_bytes(block.size, table.bits()));
      if (options.keep_error) {
        std::memset(static_cast<void*>(block.x), 0, block.size * sizeof(float));
      }
      continue;
    }
#if HWY_TARGET == HWY_AVX3_DL
    if (intervals.fits_bytes()) {
      clamped += quantize_block<ByteLookup>(intervals, table.bits(), range, block, options, block_codes);
      continue;
    }
#endif
    if constexpr (kLanes >= 8) {
      if (intervals.fits_registers()) {
        clamped += quantize_block<RegisterLookup>(intervals, table.bits(), range, block, options, block_codes);
        continue;
      }
    }
    clamped += quantize_block<GatherLookup>(intervals, table.bits(), range, block, options, block_codes);
  }
  return clamped;
}

}  // namespace HWY_NAMESPACE
}  // namespace thc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thc {

HWY_EXPORT(quantize);

std::size_t quantize(float* rotated, const float* max_norms, const BlockLayout& layout, const LookupTable& table,
                     const QuantizeOptions& options, std::uint8_t* codes) {
  return HWY_DYNAMIC_DISPATCH(quantize)(rotated, max_norms, layout, table, options, codes);
}

}  // namespace thc
#endif
