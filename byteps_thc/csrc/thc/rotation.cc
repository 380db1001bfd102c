#include "thc/rotation.h"

#include <algorithm>
#include <cstring>

#include "thc/lane_sums.h"
#include "thc/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thc/rotation.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "thc/hadamard-inl.h"
#include "thc/philox-inl.h"

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

/// Source of a block's coordinates.
struct BlockInput {
  const float* gradient;
  const float* residual;  // may be null
};

HWY_INLINE VF load_sum(const BlockInput& input, std::size_t i) {
  const VF v = hn::LoadU(DF(), input.gradient + i);
  return input.residual == nullptr ? v : hn::Add(v, hn::LoadU(DF(), input.residual + i));
}

/// Loads a block to rotate, and prefetches its destination, which is stored in strides.
struct LoadWithSigns {
  BlockInput input;
  const std::uint8_t* signs;
  const float* rotated;
  HWY_INLINE VF operator()(std::size_t i) const {
    __builtin_prefetch(rotated + i, 1, 2);
    return flip_signs(DF(), load_sum(input, i), signs, i);
  }
};

/// Stores a rotated block and brings the next one into L2.
struct StoreRotated {
  float* rotated;
  const float* next_gradient;
  const float* next_residual;  // any address if nothing follows
  HWY_INLINE void operator()(std::size_t i, VF v) const {
    __builtin_prefetch(next_gradient + i, 0, 2);
    __builtin_prefetch(next_residual + i, 0, 2);
    hn::StoreU(v, DF(), rotated + i);
  }
};

struct LoadScaled {
  const float* x;
  float scale;
  HWY_INLINE VF operator()(std::size_t i) const { return hn::Mul(hn::LoadU(DF(), x + i), hn::Set(DF(), scale)); }
};

/// staging[i] += residual[i]; neither is aligned.
HWY_INLINE void add_residual(const float* residual, std::size_t count, float* staging) {
  for (std::size_t i = 0; i < count; ++i) {
    float value = 0;
    float carried = 0;
    std::memcpy(&value, staging + i, sizeof(value));
    std::memcpy(&carried, residual + i, sizeof(carried));
    value += carried;
    std::memcpy(staging + i, &value, sizeof(value));
  }
}

/// Whole fp32 blocks are read in place; others are first converted or padded into `staging[size]`.
HWY_INLINE BlockInput block_input(ConstFloats gradient, const float* residual, const BlockLayout& layout,
                                  std::size_t offset, std::size_t size, float* staging) {
  const std::size_t used = std::min(size, layout.coordinates() - offset);
  const float* block_residual = residual == nullptr ? nullptr : residual + offset;
  if (used == size && gradient.format == FloatFormat::kFp32) {
    return {static_cast<const float*>((gradient + offset).data), block_residual};
  }
  thc::to_fp32(gradient + offset, used, staging);
  if (used == size) {
    return {staging, block_residual};
  }
  std::memset(static_cast<void*>(staging + used), 0, (size - used) * sizeof(float));
  if (block_residual != nullptr) {
    add_residual(block_residual, used, staging);
  }
  return {staging, nullptr};
}

HWY_ATTR void block_norms(ConstFloats gradient, const float* residual, const BlockLayout& layout, std::size_t begin,
                          std::size_t end, float* norms) {
  float* staging = block_scratch(layout.rotation_block());
  for (std::size_t b = begin; b < end; ++b) {
    const std::size_t size = layout.size(b);
    const auto input = block_input(gradient, residual, layout, layout.offset(b), size, staging);
    NormAccumulator squares;
    for (std::size_t i = 0; i < size; i += kSumLanes) {
      for (std::size_t lane = 0; lane < kSumLanes; lane += kLanes) {
        squares.add(load_sum(input, i + lane), lane);
      }
    }
    const float norm = squares.norm();
    std::memcpy(norms + b, &norm, sizeof(norm));
  }
}

HWY_ATTR void rotate(ConstFloats gradient, const float* residual, const BlockLayout& layout, const RandomKey& key,
                     float* rotated) {
  SignWindow signs(key);
  float* scratch = block_scratch(scratch_floats(layout.rotation_block()));
  for (std::size_t b = 0; b < layout.blocks(); ++b) {
    const std::size_t offset = layout.offset(b);
    const std::size_t size = layout.size(b);
    const auto input = block_input(gradient, residual, layout, offset, size, rotated + offset);
    LoadWithSigns load{input, signs.bits(offset, size), rotated + offset};
    const float* next_gradient = input.gradient + size;
    const float* next_residual = input.residual == nullptr ? next_gradient : input.residual + size;
    hadamard(size, load, scratch, StoreRotated{rotated + offset, next_gradient, next_residual});
  }
}

HWY_ATTR void inverse_rotate(float* rotated, const BlockLayout& layout, const RandomKey& key, float* out) {
  SignWindow signs(key);
  float* scratch = block_scratch(scratch_floats(layout.rotation_block()));
  for (std::size_t b = 0; b < layout.blocks(); ++b) {
    const std::size_t offset = layout.offset(b);
    const std::size_t size = layout.size(b);
    const std::size_t used = std::min(size, layout.coordinates() - offset);
    LoadScaled load{rotated + offset, 1.0F / static_cast<float>(size)};
    const std::uint8_t* bits = signs.bits(offset, size);
    hadamard(size, load, scratch, StoreWithSigns{used == size ? out + offset : rotated + offset, bits});
    if (used != size) {
      std::memcpy(static_cast<void*>(out + offset), rotated + offset, used * sizeof(float));
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace thc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thc {

HWY_EXPORT(block_norms);
HWY_EXPORT(rotate);
HWY_EXPORT(inverse_rotate);

void block_norms(ThreadPool* pool, ConstFloats gradient, const float* residual, const BlockLayout& layout,
                 float* norms) {
  // Fewest coordinates of a range: 50 us of a thread with AVX-512, the cost of waking a helper.
  constexpr std::size_t kLeast = std::size_t{1} << 19;
  for_each_blocks(pool, layout, kLeast, [&](std::size_t begin, std::size_t end) {
    HWY_DYNAMIC_DISPATCH(block_norms)(gradient, residual, layout, begin, end, norms);
  });
}

void rotate(ConstFloats gradient, const float* residual, const BlockLayout& layout, const RandomKey& key,
            float* rotated) {
  HWY_DYNAMIC_DISPATCH(rotate)(gradient, residual, layout, key, rotated);
}

void inverse_rotate(float* rotated, const BlockLayout& layout, const RandomKey& key, float* out) {
  HWY_DYNAMIC_DISPATCH(inverse_rotate)(rotated, layout, key, out);
}

}  // namespace thc
#endif
