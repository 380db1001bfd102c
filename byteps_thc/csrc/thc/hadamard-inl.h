// Walsh-Hadamard transform of one block in few passes over memory. No include guard: compiled once per target.
// Stages run from distance 1 to size / 2. Grouping them into passes does not change an output's expression tree.
#if defined(THC_HADAMARD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef THC_HADAMARD_INL_H
#undef THC_HADAMARD_INL_H
#else
#define THC_HADAMARD_INL_H
#endif

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "thc/block_layout.h"

HWY_BEFORE_NAMESPACE();
namespace thc {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
inline constexpr std::size_t kLanes = hn::MaxLanes(DF());
/// Vectors that stay in registers during a pass: AVX-512 has 32 registers, others 16.
inline constexpr std::size_t kTileVectors = kLanes >= 16 ? 16 : 8;
inline constexpr std::size_t kTile = kTileVectors * kLanes;
/// Coordinates that are transformed in L1, and in L2, before passes over more of the block.
inline constexpr std::size_t kL1Coordinates = std::size_t{1} << 11;
inline constexpr std::size_t kL2Coordinates = std::size_t{1} << 15;

/// Place of coordinate i of a block in scratch memory. A cache line between tiles spreads rows over all sets of the L1
/// cache: powers of two apart, they would evict each other.
HWY_INLINE constexpr std::size_t scratch_index(std::size_t i) {
  constexpr std::size_t kPadding = 16;
  return i + i / kTile * kPadding;
}

/// a - b. As a fused multiply with 1 (exact), subtractions of floats run on other ports than additions.
template <class V>
HWY_INLINE V subtract(V a, V b) {
  if constexpr (HWY_NATIVE_FMA && std::is_same_v<V, VF>) {
    return hn::NegMulAdd(b, hn::Set(DF(), 1.0F), a);
  } else {
    return hn::Sub(a, b);
  }
}

/// Lane i of the result is lane i ^ kDistance of v.
template <std::size_t kDistance>
HWY_INLINE VF swap_lanes(VF v) {
  if constexpr (kDistance == 1) {
    return hn::Shuffle2301(v);
  } else if constexpr (kDistance == 2) {
    return hn::Shuffle1032(v);
  } else if constexpr (kDistance * 2 == kLanes) {
    return hn::ConcatLowerUpper(DF(), v, v);
  } else {
    static_assert(kDistance == 4);
    return hn::SwapAdjacentBlocks(v);
  }
}

/// Butterflies at kDistance < kLanes: lane i becomes v[i] + v[i + kDistance], or v[i - kDistance] - v[i].
template <std::size_t kDistance>
HWY_INLINE VF butterfly_in_vector(VF v) {
  alignas(64) static constexpr float kSigns[4][16] = {
      {1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1},
      {1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1},
      {1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1},
      {1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1},
  };
  const VF signs = hn::Load(DF(), kSigns[std::countr_zero(kDistance)]);
  return hn::MulAdd(v, signs, swap_lanes<kDistance>(v));  // v * +-1 is exact, fused or not
}

HWY_INLINE VF butterflies_in_vector(VF v) {
  v = butterfly_in_vector<1>(v);
  v = butterfly_in_vector<2>(v);
  if constexpr (kLanes >= 8) {
    v = butterfly_in_vector<4>(v);
  }
  if constexpr (kLanes >= 16) {
    v = butterfly_in_vector<8>(v);
  }
  return v;
}

/// Butterflies between kCount vectors, at distances 1 to kCount / 2 vectors.
template <std::size_t kCount, class V>
HWY_INLINE void butterflies(V (&v)[kCount]) {
#pragma GCC unroll 8
  for (std::size_t half = 1; half < kCount; half *= 2) {
#pragma GCC unroll 16
    for (std::size_t k = 0; k < kCount / 2; ++k) {
      const std::size_t i = k / half * 2 * half + k % half;
      const V sum = hn::Add(v[i], v[i + half]);
      v[i + half] = subtract(v[i], v[i + half]);
      v[i] = sum;
    }
  }
}

/// First pass: scratch of coordinates offset .. offset + kCount * kLanes - 1 from load(coordinate), all stages within.
template <std::size_t kCount, class Load>
HWY_NOINLINE void tile_pass(const Load& load, std::size_t offset, float* scratch) {
  const DF d;
  VF v[kCount];
#pragma GCC unroll 16
  for (std::size_t i = 0; i < kCount; ++i) {
    v[i] = load(offset + i * kLanes);
  }
#pragma GCC unroll 16
  for (std::size_t i = 0; i < kCount; ++i) {
    v[i] = butterflies_in_vector(v[i]);
  }
  butterflies(v);
#pragma GCC unroll 16
  for (std::size_t i = 0; i < kCount; ++i) {
    hn::StoreU(v[i], d, scratch + scratch_index(offset) + i * kLanes);
  }
}

/// The first pass over a block of kCount vectors or fewer, but 16 coordinates at least.
template <std::size_t kCount, class Load>
HWY_INLINE void small_pass(std::size_t size, const Load& load, float* scratch) {
  if constexpr (kCount * kLanes > 16) {
    if (size < kCount * kLanes) {
      return small_pass<kCount / 2>(size, load, scratch);
    }
  }
  tile_pass<kCount>(load, 0, scratch);
}

/// Later pass over `size` coordinates from `start`: stages of distances half .. kRadix / 2 * half, to store(i, vector).
template <std::size_t kRadix, class Store>
HWY_NOINLINE void far_pass(const float* scratch, std::size_t start, std::size_t size, std::size_t half, Store store) {
  const DF d;
  const std::size_t row = scratch_index(half);
  for (std::size_t group = start; group < start + size; group += kRadix * half) {
    for (std::size_t k = group; k < group + half; k += kLanes) {
      const float* x = scratch + scratch_index(k);
      VF v[kRadix];
#pragma GCC unroll 16
      for (std::size_t r = 0; r < kRadix; ++r) {
        v[r] = hn::LoadU(d, x + r * row);
      }
      butterflies(v);
#pragma GCC unroll 16
      for (std::size_t r = 0; r < kRadix; ++r) {
        store(k + r * half, v[r]);
      }
    }
  }
}

struct StoreToScratch {
  float* scratch;
  HWY_INLINE void operator()(std::size_t i, VF v) const { hn::StoreU(v, DF(), scratch + scratch_index(i)); }
};

/// Runs the stages of distances half .. size / 2 on `size` coordinates from `start`; the last pass calls `store`.
template <class Store>
HWY_INLINE void far_stages(float* scratch, std::size_t start, std::size_t size, std::size_t half, Store store) {
  constexpr int kMaxStages = kTileVectors == 16 ? 4 : 3;
  while (half < size) {
    const int left = std::countr_zero(size) - std::countr_zero(half);
    const int stages = left > kMaxStages && left < 2 * kMaxStages ? (left + 1) / 2 : std::min(left, kMaxStages);
    const bool last = stages == left;
    const auto pass = [&](auto radix) HWY_ATTR {
      if (last) {
        far_pass<radix()>(scratch, start, size, half, store);
      } else {
        far_pass<radix()>(scratch, start, size, half, StoreToScratch{scratch});
      }
    };
    switch (stages) {
      case 1:
        pass(std::integral_constant<std::size_t, 2>());
        break;
      case 2:
        pass(std::integral_constant<std::size_t, 4>());
        break;
      case 3:
        pass(std::integral_constant<std::size_t, 8>());
        break;
      default:
        pass(std::integral_constant<std::size_t, kTileVectors>());
        break;
    }
    half <<= stages;
  }
}

/// Floats of scratch memory that transforms of up to `size` coordinates need.
HWY_INLINE std::size_t scratch_floats(std::size_t size) { return scratch_index(size); }

/// Transforms load(0 .. size - 1), and calls store(coordinate, vector) once for every vector. All loads, in order of
/// coordinates, come before the first store, so both may use the same memory.
template <class Load, class Store>
HWY_INLINE void hadamard(std::size_t size, const Load& load, float* scratch, Store store) {
  if (size < kTile) {
    small_pass<kTileVectors / 2>(size, load, scratch);
  }
  const std::size_t in_l1 = std::min(size, kL1Coordinates);
  const std::size_t in_l2 = std::min(size, kL2Coordinates);
  for (std::size_t start = 0; start < size && size >= kTile; start += in_l2) {
    for (std::size_t k = start; k < start + in_l2; k += in_l1) {
      for (std::size_t tile = k; tile < k + in_l1; tile += kTile) {
        tile_pass<kTileVectors>(load, tile, scratch);
      }
      if (in_l1 < size) {
        far_stages(scratch, k, in_l1, kTile, StoreToScratch{scratch});
      }
    }
    if (in_l2 < size) {
      far_stages(scratch, start, in_l2, in_l1, StoreToScratch{scratch});
    }
  }
  if (size <= kTile) {
    for (std::size_t i = 0; i < size; i += kLanes) {
      store(i, hn::LoadU(DF(), scratch + i));
    }
  } else {
    far_stages(scratch, 0, size, in_l2 < size ? in_l2 : in_l1 < size ? in_l1 : kTile, store);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace thc
HWY_AFTER_NAMESPACE();

#endif
