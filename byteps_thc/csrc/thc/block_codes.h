// Among ranks: codes that are decoded, not added. Blocks of 64 are rotated and rounded to uniform levels with dither
// that the decoder subtracts, and have a scale of 8 bits. docs/contributors/algorithm.md has the round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "thc/block_table.h"
#include "thc/float_format.h"
#include "thc/philox.h"

namespace thc {

inline constexpr unsigned kMaxBlockBits = 8;

/// Whose random numbers round a block: those of all ranks' gradients, or those of the average.
enum class Hop : std::uint8_t { kUp, kDown };

/// Random numbers of a gradient in a round. signs: of the coordinates of every block, a set bit negates. levels,
/// chances: of block 0; those of others follow as a Weyl sequence.
struct BlockRandom {
  std::uint64_t signs;
  std::uint32_t levels;
  std::uint32_t chances;

  BlockRandom(const RandomKey& key, Hop hop);
  /// Ranks have equidistant shares of the levels, so that their errors cancel (Suresh et al., ICML 2022).
  BlockRandom of_rank(std::size_t rank, std::size_t ranks) const;
};

/// What a rank sent of some blocks. codes: 8 * bits bytes each. scales: scale_bytes().
struct BlockCodes {
  const std::uint8_t* codes;
  const std::uint8_t* scales;
};

/// Writes codes and scales of blocks. gradient: the array that the blocks' coordinates count in. A block whose largest
/// rotated value is below 2^-100 has the scale 0; one above 2^100, or that is no number, has codes of 0 and a scale
/// that says so.
void encode_blocks(ConstFloats gradient, Blocks blocks, const BlockRandom& random, unsigned bits, std::uint8_t* codes,
                   std::uint8_t* scales);

/// out = average of what the ranks' codes stand for, added in order of ranks: zeros where all scales are 0, NaN in
/// blocks that are not finite on a rank. random: before of_rank(); out: the array that the blocks' coordinates count
/// in.
void decode_blocks(std::span<const BlockCodes> ranks, Blocks blocks, const BlockRandom& random, unsigned bits,
                   Floats out);

/// The two in one pass over the codes: decode_blocks() of the way up, then encode_blocks() for the way down, without
/// rounding between them.
void recode_blocks(std::span<const BlockCodes> ranks, Blocks blocks, const BlockRandom& up, unsigned bits,
                   const BlockRandom& down, unsigned down_bits, std::uint8_t* codes, std::uint8_t* scales);

}  // namespace thc
