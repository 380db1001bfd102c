// Sums of vectors in the order of lane_sums.h. No include guard: compiled once per target.
#if defined(THC_LANE_SUMS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef THC_LANE_SUMS_INL_H
#undef THC_LANE_SUMS_INL_H
#else
#define THC_LANE_SUMS_INL_H
#endif

#include <bit>
#include <cstddef>

#include "hwy/highway.h"
#include "thc/hadamard-inl.h"
#include "thc/lane_sums.h"

HWY_BEFORE_NAMESPACE();
namespace thc {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Sum of squares in the 16 lanes of Lanes<double>.
class NormAccumulator {
  using VD = hn::Vec<hn::ScalableTag<double>>;

 public:
  HWY_INLINE NormAccumulator() {
    for (VD& sum : sums_) {
      sum = hn::Zero(hn::ScalableTag<double>());  // NEON's vectors have a constructor, which leaves them as they are
    }
  }

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
    Lanes<double> lanes;
    for (std::size_t i = 0; i < kSums; ++i) {
      hn::StoreU(sums_[i], hn::ScalableTag<double>(), lanes.data() + i * (kLanes / 2));
    }
    return norm_of(lanes);
  }

 private:
  static constexpr std::size_t kSums = 2 * kSumLanes / kLanes;
  VD sums_[kSums];
};

/// Vectors that hold the 16 lanes.
inline constexpr std::size_t kDotParts = kSumLanes / kLanes;

/// leaf(first) + .. + leaf(first + kCount - 1) as a balanced binary tree.
template <std::size_t kCount, class Leaf>
HWY_INLINE VF tree_of(const Leaf& leaf, std::size_t first = 0) {
  if constexpr (kCount == 1) {
    return leaf(first);
  } else {
    return hn::Add(tree_of<kCount / 2>(leaf, first), tree_of<kCount / 2>(leaf, first + kCount / 2));
  }
}

/// A tree whose parts come in order.
class TreeSum {
 public:
  /// Adds the sum of the next coordinates, as many each time, a power of two.
  HWY_INLINE void add(const VF (&sum)[kDotParts]) {
    VF carried[kDotParts];
    for (std::size_t part = 0; part < kDotParts; ++part) {
      carried[part] = sum[part];
    }
    last_ = static_cast<std::size_t>(std::countr_one(added_));
    for (std::size_t level = 0; level < last_; ++level) {
      for (std::size_t part = 0; part < kDotParts; ++part) {
        carried[part] = hn::Add(pending_[level][part], carried[part]);
      }
    }
    for (std::size_t part = 0; part < kDotParts; ++part) {
      pending_[last_][part] = carried[part];
    }
    ++added_;
  }

  /// The sum, once a power of two of sums have been added.
  HWY_INLINE float total() const {
    Lanes<float> lanes;
    for (std::size_t part = 0; part < kDotParts; ++part) {
      hn::StoreU(pending_[last_][part], DF(), lanes.data() + part * kLanes);
    }
    return sum_of(lanes);
  }

 private:
  static constexpr std::size_t kLevels = std::countr_zero(kMaxRotationBlock / kSumLanes) + 1;

  std::size_t added_ = 0;
  std::size_t last_ = 0;            // the entry that has been written last
  VF pending_[kLevels][kDotParts];  // entry k: the sum of 2^k, where bit k of added_ is set
};

}  // namespace HWY_NAMESPACE
}  // namespace thc
HWY_AFTER_NAMESPACE();

#endif
