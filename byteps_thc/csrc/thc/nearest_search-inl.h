// From coordinates to the code of the nearest point, and from codes to points. No include guard: compiled once per
// target.
#if defined(THC_NEAREST_SEARCH_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef THC_NEAREST_SEARCH_INL_H
#undef THC_NEAREST_SEARCH_INL_H
#else
#define THC_NEAREST_SEARCH_INL_H
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "thc/interval_lookup-inl.h"
#include "thc/nearest_points.h"

HWY_BEFORE_NAMESPACE();
namespace thc {
namespace HWY_NAMESPACE {
namespace nearest_search {
namespace hn = hwy::HWY_NAMESPACE;

using interval_lookup::DF;
using interval_lookup::DI;
using interval_lookup::kLanes;
using interval_lookup::VF;
using interval_lookup::VI;
using interval_lookup::Words;

/// kEntries floats, a power of two, looked up by lane index: in registers where there are enough of them.
template <std::size_t kEntries>
class FloatTable {
 public:
  /// entries: kEntries of them, or NearestPoints::kLeastEntries if that is more.
  HWY_INLINE explicit FloatTable(const float* entries) : held_(entries) {}
  HWY_INLINE VF operator[](VI index) const {
    if constexpr (kInRegisters) {
      return held_[index];
    } else {
      return hn::GatherIndex(DF(), held_.entries, index);
    }
  }

 private:
  struct InMemory {
    HWY_INLINE explicit InMemory(const float* floats) : entries(floats) {}
    const float* entries;
  };
  static constexpr std::size_t kWords = std::max(kEntries, kLanes);
  static constexpr bool kInRegisters = kWords / kLanes <= (kLanes >= 16 ? 8 : 4);
  std::conditional_t<kInRegisters, Words<DF, kWords>, InMemory> held_;
};

/// code becomes 2 code, and 1 more where z is not below the edge.
HWY_INLINE void descend(VF z, VF edge, VI& code) {
  const VI lower = hn::Add(code, code);
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  const __mmask16 is_upper = _mm512_cmp_ps_mask(z.raw, edge.raw, _CMP_GE_OQ);
  code = VI{_mm512_mask_add_epi32(lower.raw, is_upper, lower.raw, _mm512_set1_epi32(1))};
#else
  code = hn::Sub(lower, hn::BitCast(DI(), hn::VecFromMask(DF(), hn::Ge(z, edge))));
#endif
}

// Searches go level by level for several vectors at once, because each level waits for the one above.

/// Levels kLevel .. kBits - 1 of a binary search.
template <unsigned kLevel, unsigned kBits>
class EdgeTree {
 public:
  HWY_INLINE explicit EdgeTree(const NearestPoints& points) : edges_(points.level(kLevel)), below_(points) {}
  /// codes: what the levels above have found.
  template <std::size_t kCount>
  HWY_INLINE void find(const VF (&z)[kCount], VI (&codes)[kCount]) const {
#pragma GCC unroll 16
    for (std::size_t i = 0; i < kCount; ++i) {
      descend(z[i], edges_[codes[i]], codes[i]);
    }
    below_.find(z, codes);
  }

 private:
  FloatTable<std::size_t{1} << kLevel> edges_;
  EdgeTree<kLevel + 1, kBits> below_;
};

template <unsigned kBits>
class EdgeTree<kBits, kBits> {
 public:
  HWY_INLINE explicit EdgeTree(const NearestPoints& /*points*/) {}
  template <std::size_t kCount>
  HWY_INLINE void find(const VF (& /*z*/)[kCount], VI (& /*codes*/)[kCount]) const {}
};

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
/// The upper bits of codes, four at most, each with a vector of edges: an instruction less for each level, because the
/// code so far is the index of the next edge as it is.
template <unsigned kBits>
class UpperBits {
 public:
  static constexpr unsigned kFound = std::min(kBits, NearestPoints::kAlignedLevels);
  HWY_INLINE explicit UpperBits(const NearestPoints& points) {
    edges_[0] = _mm512_set1_ps(points.aligned(0)[0]);
    for (unsigned level = 1; level < kFound; ++level) {
      edges_[level] = _mm512_loadu_ps(points.aligned(level));
    }
  }
  template <std::size_t kCount>
  HWY_INLINE void find(const VF (&z)[kCount], VI (&codes)[kCount]) const {
#pragma GCC unroll 16
    for (std::size_t i = 0; i < kCount; ++i) {
      const __mmask16 is_upper = _mm512_cmp_ps_mask(z[i].raw, edges_[0], _CMP_GE_OQ);
      codes[i].raw = _mm512_maskz_set1_epi32(is_upper, 1 << (kFound - 1));
    }
#pragma GCC unroll 4
    for (unsigned level = 1; level < kFound; ++level) {
      const __m512i bit = _mm512_set1_epi32(1 << (kFound - 1 - level));
#pragma GCC unroll 16
      for (std::size_t i = 0; i < kCount; ++i) {
        const __m512 edge = _mm512_permutexvar_ps(codes[i].raw, edges_[level]);
        const __mmask16 is_upper = _mm512_cmp_ps_mask(z[i].raw, edge, _CMP_GE_OQ);
        codes[i].raw = _mm512_mask_or_epi32(codes[i].raw, is_upper, codes[i].raw, bit);
      }
    }
  }

 private:
  __m512 edges_[kFound];
};
#else
/// The first bit of codes.
template <unsigned kBits>
class UpperBits {
 public:
  static constexpr unsigned kFound = 1;
  HWY_INLINE explicit UpperBits(const NearestPoints& points) : edge_(hn::Set(DF(), points.level(0)[0])) {}
  template <std::size_t kCount>
  HWY_INLINE void find(const VF (&z)[kCount], VI (&codes)[kCount]) const {
#pragma GCC unroll 16
    for (std::size_t i = 0; i < kCount; ++i) {
      codes[i] = hn::Zero(DI());
      descend(z[i], edge_, codes[i]);
    }
  }

 private:
  VF edge_;
};
#endif

/// The cells and points of NearestPoints with so many bits.
template <unsigned kBits>
class NearestSearch {
 public:
  HWY_INLINE explicit NearestSearch(const NearestPoints& points)
      : upper_(points), lower_(points), points_(points.points()) {}
  /// Codes of the cells that z are in.
  template <std::size_t kCount>
  HWY_INLINE void find(const VF (&z)[kCount], VI (&codes)[kCount]) const {
    upper_.find(z, codes);
    lower_.find(z, codes);
  }
  HWY_INLINE VF point(VI code) const { return points_[code]; }

 private:
  UpperBits<kBits> upper_;
  EdgeTree<UpperBits<kBits>::kFound, kBits> lower_;
  FloatTable<std::size_t{1} << kBits> points_;
};

#if HWY_TARGET == HWY_AVX3_DL
/// The same by a grid and one comparison: fewer instructions for 4 bits and more. Needs NearestPoints::has_grid().
template <unsigned kBits>
class GridSearch {
 public:
  HWY_INLINE explicit GridSearch(const NearestPoints& points)
      : grid_(points.grid()),
        edges_(points.edges()),
        points_(points.points()),
        limit_(_mm512_set1_ps(points.grid_limit())),
        scale_(_mm512_set1_ps(points.grid_scale())) {}
  template <std::size_t kCount>
  HWY_INLINE void find(const VF (&z)[kCount], VI (&codes)[kCount]) const {
    constexpr int kSmallerMagnitude = 2;
    const __m512 middle = _mm512_set1_ps(NearestPoints::kGridMiddle);
#pragma GCC unroll 16
    for (std::size_t i = 0; i < kCount; ++i) {
      const __m512 inside = _mm512_range_ps(z[i].raw, limit_, kSmallerMagnitude);
      codes[i] = grid_[VI{_mm512_cvttps_epi32(_mm512_fmadd_ps(inside, scale_, middle))}];
    }
#pragma GCC unroll 16
    for (std::size_t i = 0; i < kCount; ++i) {
      const __mmask16 is_next = _mm512_cmp_ps_mask(z[i].raw, edges_[codes[i]].raw, _CMP_GE_OQ);
      codes[i].raw = _mm512_mask_add_epi32(codes[i].raw, is_next, codes[i].raw, _mm512_set1_epi32(1));
    }
  }
  HWY_INLINE VF point(VI code) const { return points_[code]; }

 private:
  interval_lookup::Bytes<NearestPoints::kGrid> grid_;
  FloatTable<std::size_t{1} << kBits> edges_;
  FloatTable<std::size_t{1} << kBits> points_;
  __m512 limit_;
  __m512 scale_;
};
#endif

/// Calls work(search) with the fastest search.
template <unsigned kBits, class Work>
HWY_INLINE void with_search(const NearestPoints& points, const Work& work) {
#if HWY_TARGET == HWY_AVX3_DL
  if constexpr (kBits >= 4 && kBits <= 6) {
    if (points.has_grid()) {
      work(GridSearch<kBits>(points));
      return;
    }
  }
#endif
  work(NearestSearch<kBits>(points));
}

/// Calls work(std::integral_constant) with the bits.
template <class Work>
HWY_INLINE void with_bits(unsigned bits, const Work& work) {
  switch (bits) {
    case 1:
      return work(std::integral_constant<unsigned, 1>());
    case 2:
      return work(std::integral_constant<unsigned, 2>());
    case 3:
      return work(std::integral_constant<unsigned, 3>());
    case 4:
      return work(std::integral_constant<unsigned, 4>());
    case 5:
      return work(std::integral_constant<unsigned, 5>());
    case 6:
      return work(std::integral_constant<unsigned, 6>());
    case 7:
      return work(std::integral_constant<unsigned, 7>());
    default:
      return work(std::integral_constant<unsigned, 8>());
  }
}

}  // namespace nearest_search
}  // namespace HWY_NAMESPACE
}  // namespace thc
HWY_AFTER_NAMESPACE();

#endif
