// Codes among ranks, which decode them: docs/contributors/algorithm.md, "Ranks decode".
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "thc/block_table.h"
#include "thc/float_format.h"
#include "thc/philox.h"
#include "thc/thread_pool.h"

namespace thc {

inline constexpr unsigned kMaxBlockBits = 8;

/// Random numbers of a gradient in a round. signs: of every block, a set bit negates. levels, chances: of block 0, from
/// which a Weyl sequence starts.
struct BlockRandom {
  std::uint64_t signs;
  std::uint32_t levels;
  std::uint32_t chances;

  /// domain: kSignDomain of gradients on their way up, kDownSignDomain of averages on their way down.
  BlockRandom(const RandomKey& key, std::uint32_t domain);
  /// Ranks have equidistant shares of the levels, so that their errors cancel (Suresh et al., ICML 2022).
  BlockRandom of_rank(std::size_t rank, std::size_t ranks) const;
};

/// A rank's blocks. codes: 8 * bits bytes a block. scales: scale_bytes().
struct BlockCodes {
  const std::uint8_t* codes;
  const std::uint8_t* scales;
};

/// Writes codes and scales of blocks. gradient: indexed by the blocks' coordinates. A block whose largest rotated value
/// is below 2^-100 has the scale 0; above 2^100 or NaN: codes of 0 and the scale 255. pool: may be null, here and
/// below.
void encode_blocks(ThreadPool* pool, ConstFloats gradient, Blocks blocks, const BlockRandom& random, unsigned bits,
                   std::uint8_t* codes, std::uint8_t* scales);

/// out = average of the ranks' values, added in order of ranks: zeros where all scales are 0, NaN in blocks with NaN of
/// a rank. random: before of_rank(). out: indexed by the blocks' coordinates. Returns the sum modulo
/// 2^32 of the average's bits in fp32, without NaN.
std::uint32_t decode_blocks(ThreadPool* pool, std::span<const BlockCodes> ranks, Blocks blocks,
                            const BlockRandom& random, unsigned bits, Floats out);

/// decode_blocks() of the way up, then encode_blocks() for the way down, in one pass and without rounding between.
void recode_blocks(ThreadPool* pool, std::span<const BlockCodes> ranks, Blocks blocks, const BlockRandom& up,
                   unsigned bits, const BlockRandom& down, unsigned down_bits, std::uint8_t* codes,
                   std::uint8_t* scales);

}  // namespace thc
