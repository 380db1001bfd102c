// Sums of floats in the order of nearest_scale.h. No include guard: compiled once per target.
#if defined(THC_TREE_SUM_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef THC_TREE_SUM_INL_H
#undef THC_TREE_SUM_INL_H
#else
#define THC_TREE_SUM_INL_H
#endif

#include <bit>
#include <cstddef>

#include "hwy/highway.h"
#include "thc/hadamard-inl.h"
#include "thc/nearest_scale.h"

HWY_BEFORE_NAMESPACE();
namespace thc {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Vectors that hold the 16 lanes.
inline constexpr std::size_t kDotParts = kDotLanes / kLanes;

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
    DotLanes lanes;
    for (std::size_t part = 0; part < kDotParts; ++part) {
      hn::StoreU(pending_[last_][part], DF(), lanes.data() + part * kLanes);
    }
    return dot_of(lanes);
  }

 private:
  static constexpr std::size_t kLevels = std::countr_zero(kMaxRotationBlock / kDotLanes) + 1;

  std::size_t added_ = 0;
  std::size_t last_ = 0;            // the entry that has been written last
  VF pending_[kLevels][kDotParts];  // entry k: the sum of 2^k, where bit k of added_ is set
};

}  // namespace HWY_NAMESPACE
}  // namespace thc
HWY_AFTER_NAMESPACE();

#endif
