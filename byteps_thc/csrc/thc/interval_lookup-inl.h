// From positions on the grid to intervals, on vectors. No include guard: compiled once per target.
#if defined(THC_INTERVAL_LOOKUP_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef THC_INTERVAL_LOOKUP_INL_H
#undef THC_INTERVAL_LOOKUP_INL_H
#else
#define THC_INTERVAL_LOOKUP_INL_H
#endif

#include <bit>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "thc/interval_table.h"

HWY_BEFORE_NAMESPACE();
namespace thc {
namespace HWY_NAMESPACE {
namespace interval_lookup {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DI = hn::ScalableTag<std::int32_t>;
using DU = hn::ScalableTag<std::uint32_t>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;
inline constexpr std::size_t kLanes = hn::MaxLanes(DF());

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

/// 16, 32 or 64 words of some type, held in registers and looked up by lane index.
template <class D, std::size_t kWords>
class Words {
 public:
  HWY_INLINE explicit Words(const hn::TFromD<D>* words) {
    for (std::size_t i = 0; i < kVectors; ++i) {
      vectors_[i] = hn::LoadU(D(), words + i * kLanes);
    }
  }
  /// words[index], index in 0 .. kWords - 1.
  HWY_INLINE hn::Vec<D> operator[](VI index) const { return lookup<0, kVectors>(index); }

 private:
  static constexpr std::size_t kVectors = kWords / kLanes;
  using V = hn::Vec<D>;

  /// The index's low bits select a lane, the bits above them one of `kCount` vectors.
  template <std::size_t kFirst, std::size_t kCount>
  HWY_INLINE V lookup(VI index) const {
    if constexpr (kCount == 1) {
#if HWY_TARGET == HWY_AVX2
      const auto words = hn::BitCast(DI(), vectors_[kFirst]);  // the instruction ignores the bits above
      return hn::BitCast(D(), VI{_mm256_permutevar8x32_epi32(words.raw, index.raw)});
#else
      const VI lane = kVectors == 1 ? index : hn::And(index, hn::Set(DI(), kLanes - 1));
      return hn::TableLookupLanes(vectors_[kFirst], hn::IndicesFromVec(D(), lane));
#endif
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
    } else if constexpr (kCount == 2) {
      const auto first = hn::BitCast(DI(), vectors_[kFirst]);
      const auto second = hn::BitCast(DI(), vectors_[kFirst + 1]);
      return hn::BitCast(D(), VI{_mm512_permutex2var_epi32(first.raw, index.raw, second.raw)});
#endif
    } else {
      const V lower = lookup<kFirst, kCount / 2>(index);
      const V upper = lookup<kFirst + kCount / 2, kCount / 2>(index);
      constexpr std::int32_t kUpper = kCount / 2 * kLanes;
#if HWY_TARGET == HWY_AVX2
      const auto sign =
          hn::BitCast(DF(), hn::ShiftLeft<31 - std::countr_zero(static_cast<std::uint32_t>(kUpper))>(index));
      const VF below = hn::BitCast(DF(), lower);
      return hn::BitCast(D(), VF{_mm256_blendv_ps(below.raw, hn::BitCast(DF(), upper).raw, sign.raw)});
#else
      const VI below = kCount == kVectors ? index : hn::And(index, hn::Set(DI(), 2 * kUpper - 1));
      return hn::IfThenElse(hn::RebindMask(D(), hn::Gt(below, hn::Set(DI(), kUpper - 1))), upper, lower);
#endif
    }
  }

  V vectors_[kVectors];
};

/// 64 or 128 bytes, looked up by lane index to lanes of 32 bits.
template <std::size_t kBytes>
class Bytes {
 public:
#if HWY_TARGET == HWY_AVX3_DL
  HWY_INLINE explicit Bytes(const std::uint8_t* bytes)
      : first_{_mm512_loadu_si512(bytes)}, last_{_mm512_loadu_si512(bytes + kBytes - 64)} {}
  /// bytes[index], index in 0 .. kBytes - 1; bytes[0] must be 0.
  HWY_INLINE VI operator[](VI index) const {
    // The three upper bytes of a lane are zero and look up the first byte, so the result needs no mask.
    return kBytes == 64 ? VI{_mm512_permutexvar_epi8(index.raw, first_.raw)}
                        : VI{_mm512_permutex2var_epi8(first_.raw, index.raw, last_.raw)};
  }

 private:
  VI first_;
  VI last_;
#else
  HWY_INLINE explicit Bytes(const std::uint8_t* bytes) : words_(reinterpret_cast<const std::uint32_t*>(bytes)) {}
  HWY_INLINE VI operator[](VI index) const {
    const auto word = words_[hn::ShiftRight<2>(index)];
    const auto shift = hn::BitCast(DU(), hn::ShiftLeft<3>(hn::And(index, hn::Set(DI(), 3))));
    return hn::BitCast(DI(), hn::And(word >> shift, hn::Set(DU(), 0xff)));
  }

 private:
  Words<DU, kBytes / 4> words_;
#endif
};

/// The interval that a position is in.
struct Interval {
  VI code;         // of its lower end
  VF value;        // there
  VF inverse_gap;  // see IntervalTable
};

/// Values and inverse gaps in registers; tables of kValues values.
template <std::size_t kValues>
class RegisterValues {
 public:
  using Found = Interval;
  HWY_INLINE explicit RegisterValues(const IntervalTable& table)
      : values_(table.values()), inverse_gaps_(table.inverse_gaps()) {}
  /// Value of `code`, which is one of the ends of the interval: the upper one where `up` is set.
  HWY_INLINE VF value(const Interval& /*interval*/, hn::Mask<DF> /*up*/, VI code) const { return values_[code]; }

 protected:
  HWY_INLINE Interval interval(VI code) const { return {code, values_[code], inverse_gaps_[code]}; }

 private:
  Words<DF, kValues> values_;
  Words<DF, kValues> inverse_gaps_;
};

/// Tables in registers, of grids that fit a byte per point. Needs IntervalTable::fits_bytes().
template <std::size_t kValues>
class ByteLookup : public RegisterValues<kValues> {
 public:
  static constexpr bool kSmallGrid = true;
  HWY_INLINE explicit ByteLookup(const IntervalTable& table) : RegisterValues<kValues>(table), bytes_(table.cells()) {}
  /// Interval of position u.
  HWY_INLINE Interval find(VF u) const { return this->interval(bytes_[integer_part(u)]); }

 private:
  Bytes<IntervalTable::kByteGrid> bytes_;
};

/// Tables in registers, of any grid with cells of at most two intervals. Needs IntervalTable::has_cells().
template <std::size_t kValues>
class CellLookup : public RegisterValues<kValues> {
 public:
  static constexpr bool kSmallGrid = false;
  HWY_INLINE explicit CellLookup(const IntervalTable& table)
      : RegisterValues<kValues>(table),
        cells_(table.cells()),
        upper_bounds_(table.upper_bounds()),
        shift_(static_cast<int>(table.cell_shift())) {}
  HWY_INLINE Interval find(VF u) const {
    const VI first = cells_[hn::ShiftRightSame(integer_part(u), shift_)];
    const auto is_next = hn::RebindMask(DI(), hn::Ge(u, upper_bounds_[first]));
    return this->interval(hn::Sub(first, hn::VecFromMask(DI(), is_next)));
  }

 private:
  Bytes<IntervalTable::kCells> cells_;
  Words<DF, kValues> upper_bounds_;
  int shift_;
};

/// Values that are their codes. Needs IntervalTable::is_identity().
class IdentityLookup {
 public:
  using Found = Interval;
  static constexpr bool kSmallGrid = false;
  HWY_INLINE explicit IdentityLookup(const IntervalTable& table)
      : last_(static_cast<std::int32_t>(table.granularity()) - 1) {}
  HWY_INLINE Interval find(VF u) const {
    const VI code = hn::Min(integer_part(u), hn::Set(DI(), last_));
    return {code, hn::ConvertTo(DF(), code), hn::Set(DF(), 0x1p16F)};
  }
  HWY_INLINE VF value(const Interval& /*interval*/, hn::Mask<DF> /*up*/, VI code) const {
    return hn::ConvertTo(DF(), code);
  }

 private:
  std::int32_t last_;  // interval
};

/// Tables in memory. Words tell value and gap of an interval, for every gather takes longer than a division.
class MemoryValues {
 public:
  struct Found : Interval {
    VF gap;
  };
  HWY_INLINE VF value(const Found& interval, hn::Mask<DF> up, VI /*code*/) const {
    return hn::Add(interval.value, hn::IfThenElseZero(up, interval.gap));
  }

 protected:
  static HWY_INLINE Found found(VI code, VI value, VI gap) {
    const VF float_gap = hn::ConvertTo(DF(), gap);
    return {{code, hn::ConvertTo(DF(), value), hn::Div(hn::Set(DF(), 0x1p16F), float_gap)}, float_gap};
  }
  static HWY_INLINE VI upper_bits(VI word, int from) {
    return hn::BitCast(DI(), hn::ShiftRightSame(hn::BitCast(DU(), word), from));
  }
};

/// One gather. Needs IntervalTable::has_points().
class PointLookup : public MemoryValues {
 public:
  static constexpr bool kSmallGrid = false;
  HWY_INLINE explicit PointLookup(const IntervalTable& table) : points_(table.points()) {}
  HWY_INLINE Found find(VF u) const {
    const VI byte = hn::Set(DI(), 0xff);
    const VI word = hn::GatherIndex(DI(), points_, integer_part(u));
    return found(hn::And(word, byte), hn::And(upper_bits(word, 8), byte), upper_bits(word, 24));
  }

 private:
  const std::int32_t* points_;
};

/// Two gathers, for any table.
class GridLookup : public MemoryValues {
 public:
  static constexpr bool kSmallGrid = false;
  HWY_INLINE explicit GridLookup(const IntervalTable& table)
      : interval_of_(table.interval_of()), words_(table.interval_words()) {}
  HWY_INLINE Found find(VF u) const {
    const VI code = hn::GatherIndex(DI(), interval_of_, integer_part(u));
    const VI word = hn::GatherIndex(DI(), words_, code);
    return found(code, hn::And(word, hn::Set(DI(), 0xffff)), upper_bits(word, 16));
  }

 private:
  const std::int32_t* interval_of_;
  const std::int32_t* words_;
};

}  // namespace interval_lookup
}  // namespace HWY_NAMESPACE
}  // namespace thc
HWY_AFTER_NAMESPACE();

#endif
