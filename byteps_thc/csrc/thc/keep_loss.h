// What requantizing lost of sums, for the residual of the rank that owns them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "thc/block_layout.h"
#include "thc/float_format.h"
#include "thc/lookup_table.h"
#include "thc/requantize.h"

namespace thc {

/// Sums of a shard, and what requantize() has made of them.
struct RequantizedSums {
  ExactSums exact;
  std::uint16_t granularity;    // of the table that they are sums of
  const std::uint8_t* codes;    // packed
  const std::uint16_t* scales;  // any alignment
  std::size_t first;            // the partition's coordinate that they begin with, a multiple of kScaleGroup
};

/// residual[layout.coordinates()] += workers * (1/d) D H (what the sums stand for, less what their codes and scales do;
/// 0 outside the shard), in rotation blocks that the shard has a part of. table: of the codes. threshold, max_norms
/// [layout.blocks()]: of decode(). key.first: the partition's coordinate that layout and residual begin with, where
/// a rotation block begins. Blocks whose max norm is not finite lose nothing. residual: fp32, or bf16, rounded
/// to nearest even. Throws std::bad_alloc.
void keep_loss(const RequantizedSums& sums, const LookupTable& table, const float* max_norms, float threshold,
               const BlockLayout& layout, const RandomKey& key, Floats residual);

}  // namespace thc
