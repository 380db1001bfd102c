// Walsh-Hadamard transform of one block in few passes over memory. No include guard: compiled once per target.
//
// Butterflies run stage by stage from distance 1 to size / 2. A pass keeps several vectors in registers and does several
// stages on them; results do not depend on how stages are grouped, as every output keeps its expression tree.
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

#include "hwy/highway.h"

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
/// Blocks up to this many coordinates are transformed in L2 before passes over the whole block.
inline constexpr std::size_t kCachedCoordinates = std::size_t{1} << 15;

/// a - b. As a fused multiply with 1 (exact), subtractions run on other ports than additions.
HWY_INLINE VF subtract(VF a, VF b) {
#if HWY_NATIVE_FMA
  return hn::NegMulAdd(b, hn::Set(DF(), 1.0F), a);
#else
  return hn::Sub(a, b);
#endif
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
template <std::size_t kCount>
HWY_INLINE void butterflies(VF (&v)[kCount]) {
#pragma GCC unroll 8
  for (std::size_t half = 1; half < kCount; half *= 2) {
#pragma GCC unroll 16
    for (std::size_t k = 0; k < kCount / 2; ++k) {
      const std::size_t i = k / half * 2 * half + k % half;
      const VF sum = hn::Add(v[i], v[i + half]);
      v[i + half] = subtract(v[i], v[i + half]);
      v[i] = sum;
    }
  }
}

/// First pass: x[offset, offset + kCount * kLanes) from load(coordinate), all stages within.
template <std::size_t kCount, class Load>
HWY_INLINE void tile_pass(Load& load, std::size_t offset, float* x) {
  const DF d;
  VF v[kCount];
#pragma GCC unroll 16
  for (std::size_t i = 0; i < kCount; ++i) {
    v[i] = butterflies_in_vector(load(offset + i * kLanes, i * kLanes % 16));
  }
  butterflies(v);
#pragma GCC unroll 16
  for (std::size_t i = 0; i < kCount; ++i) {
    hn::StoreU(v[i], d, x + offset + i * kLanes);
  }
}

/// Later pass: stages of distances half .. kRadix / 2 * half of x[size]; results go to store(coordinate, vector).
template <std::size_t kRadix, class Store>
HWY_NOINLINE void far_pass(const float* x, std::size_t size, std::size_t half, Store store) {
  const DF d;
  for (std::size_t start = 0; start < size; start += kRadix * half) {
    for (std::size_t k = start; k < start + half; k += kLanes) {
      VF v[kRadix];
#pragma GCC unroll 16
      for (std::size_t r = 0; r < kRadix; ++r) {
        v[r] = hn::LoadU(d, x + k + r * half);
      }
      butterflies(v);
#pragma GCC unroll 16
      for (std::size_t r = 0; r < kRadix; ++r) {
        store(k + r * half, v[r]);
      }
    }
  }
}

/// far_pass of radix 32 with 16 vectors in registers: the lower half waits in x for the last stage.
template <class Store>
HWY_NOINLINE void far_pass_32(float* x, std::size_t size, std::size_t half, Store store) {
  const DF d;
  for (std::size_t start = 0; start < size; start += 32 * half) {
    for (std::size_t k = start; k < start + half; k += kLanes) {
      VF v[16];
#pragma GCC unroll 16
      for (std::size_t r = 0; r < 16; ++r) {
        v[r] = hn::LoadU(d, x + k + r * half);
      }
      butterflies(v);
#pragma GCC unroll 16
      for (std::size_t r = 0; r < 16; ++r) {
        hn::StoreU(v[r], d, x + k + r * half);
        v[r] = hn::LoadU(d, x + k + (r + 16) * half);
      }
      butterflies(v);
#pragma GCC unroll 16
      for (std::size_t r = 0; r < 16; ++r) {
        const VF low = hn::LoadU(d, x + k + r * half);
        store(k + r * half, hn::Add(low, v[r]));
        store(k + (r + 16) * half, subtract(low, v[r]));
      }
    }
  }
}

struct StoreTo {
  float* x;
  HWY_INLINE void operator()(std::size_t i, VF v) const { hn::StoreU(v, DF(), x + i); }
};

/// Runs the stages of distances half .. end / 2 on x[size]; the last pass, if there is one, stores through `store`.
template <class Store>
HWY_INLINE void far_stages(float* x, std::size_t size, std::size_t half, std::size_t end, Store store) {
  constexpr int kMaxStages = kTileVectors == 16 ? 4 : 3;
  while (half < end) {
    const int left = std::countr_zero(end) - std::countr_zero(half);
    if (kMaxStages == 4 && left == 5) {
      far_pass_32(x, size, half, store);
      return;
    }
    const int stages = left > kMaxStages && left < 2 * kMaxStages ? (left + 1) / 2 : std::min(left, kMaxStages);
    const bool last = stages == left;
    const auto pass = [&](auto radix) HWY_ATTR {
      if (last) {
        far_pass<radix()>(x, size, half, store);
      } else {
        far_pass<radix()>(x, size, half, StoreTo{x});
      }
    };
    switch (stages) {
      case 1: pass(std::integral_constant<std::size_t, 2>()); break;
      case 2: pass(std::integral_constant<std::size_t, 4>()); break;
      case 3: pass(std::integral_constant<std::size_t, 8>()); break;
      default: pass(std::integral_constant<std::size_t, kTileVectors>()); break;
    }
    half <<= stages;
  }
}

/// Transforms load(0 .. size - 1) and hands every vector to store(coordinate, vector) once; x[size] is scratch. `load`
/// is called once per vector in order of coordinates.
template <class Load, class Store>
HWY_INLINE void hadamard(std::size_t size, Load& load, float* x, Store store) {
  const std::size_t tile = std::min(size, kTile);
  const std::size_t cached = std::min(size, kCachedCoordinates);
  for (std::size_t start = 0; start < size; start += cached) {
    if (tile == kTile) {
      for (std::size_t k = start; k < start + cached; k += kTile) {
        tile_pass<kTileVectors>(load, k, x);
      }
    } else if (size == 2 * kMinRotationBlock) {  // only with 16 lanes a tile is more than the smallest block
      tile_pass<2 * kMinRotationBlock / kLanes>(load, 0, x);
    } else {
      tile_pass<kMinRotationBlock / kLanes>(load, 0, x);
    }
    if (cached == size) {
      break;
    }
    far_stages(x + start, cached, tile, cached, StoreTo{x + start});
  }
  if (tile == size) {
    for (std::size_t i = 0; i < size; i += kLanes) {
      store(i, hn::LoadU(DF(), x + i));
    }
    return;
  }
  far_stages(x, size, cached == size ? tile : cached, size, store);
}

}  // namespace HWY_NAMESPACE
}  // namespace thc
HWY_AFTER_NAMESPACE();

#endif
