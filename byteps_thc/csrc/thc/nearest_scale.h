// The scale of a block of codes, and what of it each rank's points are multiplied with.
#pragma once

#include <cstddef>
#include <limits>

namespace thc {

/// Norms of blocks within 2^+-100 are encoded, so that nothing on the way over- or underflows.
inline constexpr float kLeastNorm = 0x1p-100F;
inline constexpr float kMostNorm = 0x1p+100F;

/// The norm of a block is the root of <x, x>, unless squares may over- or underflow: then that of lane_sums.h.
constexpr bool squares_fit(float squares) noexcept { return squares >= 0x1p-100F && squares <= 0x1p+100F; }

enum class BlockKind { kZero, kFinite, kNotFinite };
constexpr BlockKind kind_of(float norm) noexcept {
  if (norm < kLeastNorm) return BlockKind::kZero;
  return norm <= kMostNorm ? BlockKind::kFinite : BlockKind::kNotFinite;  // NaN: not
}

/// |y|^2 / <y, c> (DRIVE, EDEN), y being the rotated block: y = norm z, and the mean square of z is 1. dot: <z, c>.
/// Where codes hardly point to where the block does, which only staggered points of a few bits can: 0.
inline float scale_of(float norm, float dot, std::size_t size) noexcept {
  const auto coordinates = static_cast<float>(size);
  return dot >= coordinates * 0x1p-12F ? norm * coordinates / dot : 0.0F;
}

inline constexpr float kNoScale = std::numeric_limits<float>::quiet_NaN();

/// Of one of `ranks` ranks, with 1/d of the inverse rotation.
inline float factor_of(float scale, std::size_t ranks, std::size_t size) noexcept {
  return scale / static_cast<float>(ranks) * (1.0F / static_cast<float>(size));
}

}  // namespace thc
