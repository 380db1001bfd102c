// What is known of the errors of sums of all workers, 64 coordinates at a time. No include guard: once per target.
#if defined(THC_KNOWN_SUMS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef THC_KNOWN_SUMS_INL_H
#undef THC_KNOWN_SUMS_INL_H
#else
#define THC_KNOWN_SUMS_INL_H
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "thc/known_error.h"
#include "thc/philox-inl.h"
#include "thc/rounding-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thc {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Bits are generated one step ahead, as in quantization.cc.
class KnownSums {
 public:
  static constexpr std::size_t kGroup = 64;

  /// known: of a sum of `workers`. first: coordinate to begin with, counted from key.first; a multiple of kGroup.
  HWY_INLINE KnownSums(const KnownError& known, unsigned workers, std::uint32_t domain, const RandomKey& key,
                       std::size_t first)
      : known_(&known),
        stream_(key, domain),
        workers_(hn::Set(D16(), static_cast<std::uint16_t>(workers))),
        index_(stream_.indices(D64(), static_cast<std::uint32_t>((key.first + first) / 8))),
        next_(stream_.pairs(D64(), index_)) {}

  /// Calls store(i, errors of coordinates from i on) for all vectors of the next group, not in order.
  template <class Store>
  HWY_INLINE void next(const Store& store) {
    for (std::size_t part = 0; part < 8; part += kPhiloxLanes) {
      const auto random = next_;
      advance(kPhiloxLanes);
#pragma GCC unroll 2
      for (std::size_t p = 0; p < 2; ++p) {
        const auto bits = hn::BitCast(D64(), hn::Mul(hn::BitCast(D16(), random.pair[p]), workers_));
        const std::size_t i = 32 * p + 2 * part;
        store(i, known_.at(uniform_from<true>(bits)));
        store(i + 16, known_.at(uniform_from<false>(bits)));
      }
    }
  }

  /// Leaves a group out.
  HWY_INLINE void skip() { advance(8); }

 private:
  using D64 = hn::ScalableTag<std::uint64_t>;
  using D16 = hn::ScalableTag<std::uint16_t>;
  static constexpr std::size_t kPhiloxLanes = hn::MaxLanes(D64());

  HWY_INLINE void advance(std::size_t blocks) {
    index_ = hn::Add(index_, hn::Set(D64(), blocks));
    next_ = stream_.pairs(D64(), index_);
  }

  KnownErrorLookup known_;
  PhiloxStream<kRoundingRounds> stream_;
  hn::Vec<D16> workers_;
  hn::Vec<D64> index_;
  PhiloxPairs<hn::Vec<D64>> next_;
};

}  // namespace HWY_NAMESPACE
}  // namespace thc
HWY_AFTER_NAMESPACE();

#endif
