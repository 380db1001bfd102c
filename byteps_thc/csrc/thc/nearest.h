// Among ranks: codes that are decoded, not added. Rotated blocks are rounded to the nearest points, with a scale for
// each block (DRIVE and EDEN, Vargaftik et al., NeurIPS 2021 and ICML 2022); one rotation for all ranks, staggered
// points, and signs of their own on the way down are not theirs. docs/contributors/algorithm.md has the round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "thc/float_format.h"
#include "thc/nearest_points.h"
#include "thc/philox.h"
#include "thc/rotation_blocks.h"

namespace thc {

/// Whose signs rotate a block: those of all ranks' gradients, or those of the average.
enum class Hop : std::uint8_t { kUp, kDown };

/// Blocks whose arrays begin with the first one of them: gradient, codes and scales are those of a shard where the
/// blocks are.
using Blocks = std::span<const RotationBlock>;

/// Codes of blocks, packed with `bits`; a scale for each block; any alignment.
struct NearestCodes {
  const std::uint8_t* codes;
  const float* scales;
  const float* points;  // 2^bits
};

/// Rotates, rounds and packs gradient: codes of each block, and its scale: 0 (and codes 0) where its norm is below
/// 2^-100, NaN (and codes 0) where that is above 2^100 or no number. Throws std::bad_alloc, as all of these.
void encode_nearest(ConstFloats gradient, Blocks blocks, const RandomKey& key, Hop hop, const NearestPoints& points,
                    std::uint8_t* codes, float* scales);

/// out = average of what the ranks' codes stand for, added in order of ranks and rotated back; +0 in blocks whose
/// scales are all 0, and NaN where one is NaN.
void decode_nearest(std::span<const NearestCodes> ranks, unsigned bits, Blocks blocks, const RandomKey& key, Hop hop,
                    Floats out);

/// The two in one pass over the codes: decode_nearest() of the way up, then encode_nearest() for the way down, without
/// rounding between them.
void recode_nearest(std::span<const NearestCodes> ranks, unsigned bits, Blocks blocks, const RandomKey& key,
                    const NearestPoints& down, std::uint8_t* codes, float* scales);

}  // namespace thc
