#include "thc/quantization.h"

#include <cstring>

#include "thc/clamp_range.h"
#include "thc/interval_table.h"
#include "thc/pack.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thc/quantization.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "thc/code_store-inl.h"
#include "thc/interval_lookup-inl.h"
#include "thc/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thc {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using code_store::CodeWords;
using code_store::kGroup;
using code_store::with_store;
using interval_lookup::ByteLookup;
using interval_lookup::CellLookup;
using interval_lookup::DF;
using interval_lookup::DI;
using interval_lookup::DU;
using interval_lookup::GridLookup;
using interval_lookup::IdentityLookup;
using interval_lookup::kLanes;
using interval_lookup::PointLookup;
using interval_lookup::VF;
using interval_lookup::VI;
using D64 = hn::ScalableTag<std::uint64_t>;
using D16 = hn::ScalableTag<std::uint16_t>;

/// r + 0.5 for 16 random bits r per lane, from a half of each 64-bit lane: the lower bits in even lanes.
template <bool kUpperHalf>
HWY_INLINE VF uniform_from(hn::Vec<D64> pair) {
  const DF d;
  const DU du;
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

/// Quantizes coordinates of one block.
template <class Lookup, bool kKeepError>
class BlockQuantizer {
 public:
  HWY_INLINE BlockQuantizer(const IntervalTable& table, const ClampRange& range)
      : lookup_(table), range_(range), granularity_(table.granularity()) {}

  /// Codes of the vector `at`, which becomes the error if kKeepError. random: rounding bits, in one half of every lane.
  template <bool kUpperHalf>
  HWY_INLINE VI quantize(float* at, hn::Vec<D64> random) {
    const DF d;
    const VF x = hn::LoadU(d, at);
    const VF u = clamped_position(x);
    const typename Lookup::Found interval = lookup_.find(u);
    const VF fraction = hn::Mul(hn::Sub(u, interval.value), interval.inverse_gap);
    const auto up = hn::Lt(uniform_from<kUpperHalf>(random), fraction);
    const VI next = hn::Add(interval.code, hn::Set(DI(), 1));
    const VI code = hn::IfThenElse(hn::RebindMask(DI(), up), next, interval.code);
    if constexpr (kKeepError) {
      const VF value = lookup_.value(interval, up, code);
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
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
    if constexpr (Lookup::kSmallGrid) {
      // Clamping x instead of its position takes one instruction. Positions then miss 0 and g by up to 2^-17.4, closer
      // to an end than any random bits (2^-17).
      constexpr int kSmallerMagnitude = 2;
      const VF inside{_mm512_range_ps(x.raw, limit.raw, kSmallerMagnitude)};
      clamped_ += hn::CountTrue(d, hn::Mask<DF>{_mm512_cmp_ps_mask(inside.raw, x.raw, _CMP_NEQ_OQ)});
      return position(inside);
    }
#endif
    clamped_ += hn::CountTrue(d, hn::Gt(hn::Abs(x), limit));
    return hn::Min(hn::Max(position(x), hn::Zero(d)), hn::Set(d, granularity_));
  }

  Lookup lookup_;
  ClampRange range_;
  float granularity_;
  std::size_t clamped_ = 0;
};

/// A block and the coordinate of the partition it starts at.
struct BlockPosition {
  float* x;
  std::size_t offset;
  std::size_t size;
};

/// Brings kGroup floats of so many bytes into L2. As many prefetches for small ones, so that nothing branches.
HWY_INLINE void prefetch_group(const std::uint8_t* floats, std::size_t bytes) {
  constexpr std::size_t kLineFloats = 16;
  for (std::size_t i = 0; i < kGroup; i += kLineFloats) {
    __builtin_prefetch(floats + i * bytes, 0, 2);
  }
}

/// Calls store(coordinate within the block, codes) for every CodeWords of the block.
template <class Quantizer, class Store>
HWY_INLINE void quantize_vectors(Quantizer& quantizer, const BlockPosition& block, const QuantizeOptions& options,
                                 const Store& store) {
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
    prefetch_group(reinterpret_cast<const std::uint8_t*>(next_gradient + group), sizeof(float));
    prefetch_group(reinterpret_cast<const std::uint8_t*>(next_residual + group), sizeof(float));
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

template <class Lookup, bool kKeepError>
HWY_NOINLINE std::size_t quantize_block(const IntervalTable& intervals, unsigned bits, const ClampRange& range,
                                        const BlockPosition& block, const QuantizeOptions& options,
                                        std::uint8_t* codes) {
  BlockQuantizer<Lookup, kKeepError> quantizer(intervals, range);
  with_store(block.size, bits, codes,
             [&](const auto& store) HWY_ATTR { quantize_vectors(quantizer, block, options, store); });
  return quantizer.clamped();
}

template <class Lookup>
HWY_INLINE std::size_t quantize_block(const IntervalTable& intervals, unsigned bits, const ClampRange& range,
                                      const BlockPosition& block, const QuantizeOptions& options, std::uint8_t* codes) {
  return options.keep_error ? quantize_block<Lookup, true>(intervals, bits, range, block, options, codes)
                            : quantize_block<Lookup, false>(intervals, bits, range, block, options, codes);
}

HWY_INLINE std::size_t quantize_with_best_lookup(const IntervalTable& intervals, const LookupTable& table,
                                                 const ClampRange& range, const BlockPosition& block,
                                                 const QuantizeOptions& options, std::uint8_t* codes) {
  const unsigned bits = table.bits();
  if (intervals.is_identity()) {
    return quantize_block<IdentityLookup>(intervals, bits, range, block, options, codes);
  }
  if constexpr (kLanes >= 8) {
    if (intervals.fits_bytes() && table.size() <= 16) {
      return quantize_block<ByteLookup<16>>(intervals, bits, range, block, options, codes);
    }
  }
  if constexpr (kLanes == 16) {
    if (intervals.fits_bytes()) {  // tables of more than 32 values are identities then
      return quantize_block<ByteLookup<32>>(intervals, bits, range, block, options, codes);
    }
    if (intervals.has_cells() && table.size() <= 32) {
      return quantize_block<CellLookup<32>>(intervals, bits, range, block, options, codes);
    }
    if (intervals.has_cells() && table.size() == 64) {
      return quantize_block<CellLookup<64>>(intervals, bits, range, block, options, codes);
    }
  }
  if (intervals.has_points()) {
    return quantize_block<PointLookup>(intervals, bits, range, block, options, codes);
  }
  return quantize_block<GridLookup>(intervals, bits, range, block, options, codes);
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
    clamped += quantize_with_best_lookup(intervals, table, range, block, options, block_codes);
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
