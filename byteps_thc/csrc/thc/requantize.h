// Sums of table values, which one rank has summed exactly, to the codes and scales that it sends to all others.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "thc/centered_sums.h"
#include "thc/lookup_table.h"
#include "thc/philox.h"

namespace thc {

/// So many coordinates of a partition, from multiples of it on, have a scale; the last group may have fewer.
inline constexpr std::size_t kScaleGroup = 256;
/// Philox domain of the rounding bits; those of the workers' own are small numbers (byteps_thc/rounding.py).
inline constexpr std::uint32_t kRequantizeDomain = 0xFFFFFFFF;

constexpr std::size_t scale_groups(std::size_t coordinates) noexcept {
  return (coordinates + kScaleGroup - 1) / kScaleGroup;
}

/// The number that a scale is.
constexpr float scale_value(std::uint16_t scale) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(scale) << 16);
}

/// A sum S stands for c = 2 S - most, in -most .. most, a little more or less where a known error is subtracted.
/// scales[scale_groups(count)]: the largest |c| of the group as bfloat16, rounded up; codes: c, packed, quantized
/// without bias to the points of `table` between -scale and scale. As no |c| is larger than its scale nothing is
/// clamped. Where all c of a group are 0 its scale is 0 and its codes are any. key.first: the partition's coordinate
/// that `exact` begins with, a multiple of kScaleGroup. Throws std::bad_alloc.
void requantize(const ExactSums& exact, const LookupTable& table, const RandomKey& key, std::uint8_t* codes,
                std::uint16_t* scales);

}  // namespace thc
