// Norms on vectors, with the bits of norm_sum.h. No include guard: compiled once per target.
#if defined(THC_NORM_SUM_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef THC_NORM_SUM_INL_H
#undef THC_NORM_SUM_INL_H
#else
#define THC_NORM_SUM_INL_H
#endif

#include <cstddef>

#include "hwy/highway.h"
#include "thc/hadamard-inl.h"
#include "thc/norm_sum.h"

HWY_BEFORE_NAMESPACE();
namespace thc {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Sum of squares in the 16 lanes of NormLanes.
class NormAccumulator {
 public:
  /// `lane`: lane of v's first coordinate; a constant after inlining.
  HWY_INLINE void add(VF v, std::size_t lane) {
    const hn::ScalableTag<double> d;
    const hn::Half<DF> dh;
    const auto low = hn::PromoteTo(d, hn::LowerHalf(dh, v));
    const auto high = hn::PromoteTo(d, hn::UpperHalf(dh, v));
    auto& sum_low = sums_[lane / (kLanes / 2)];
    auto& sum_high = sums_[lane / (kLanes / 2) + 1];
    sum_low = hn::MulAdd(low, low, sum_low);  // the product is exact, so fused or not is the same
    sum_high = hn::MulAdd(high, high, sum_high);
  }

  HWY_INLINE float norm() const {
    NormLanes lanes;
    for (std::size_t i = 0; i < kSums; ++i) {
      hn::StoreU(sums_[i], hn::ScalableTag<double>(), lanes.data() + i * (kLanes / 2));
    }
    return norm_of(lanes);
  }

 private:
  static constexpr std::size_t kSums = 2 * kNormLanes / kLanes;
  using VD = hn::Vec<hn::ScalableTag<double>>;
  VD sums_[kSums] = {};
};

}  // namespace HWY_NAMESPACE
}  // namespace thc
HWY_AFTER_NAMESPACE();

#endif
