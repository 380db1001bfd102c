// From an aggregate back to the average gradient (paper, section 5.4): one affine map and the inverse rotation.
#pragma once

#include <cstddef>
#include <cstdint>

#include "thc/block_layout.h"
#include "thc/float_format.h"
#include "thc/philox.h"
#include "thc/thread_pool.h"

namespace thc {

/// Sums of table values of one partition, as they came from the aggregator.
struct Aggregate {
  const void* sums;                    // layout.padded() sums in host order, any alignment
  unsigned value_bits;                 // 8 or 16
  const std::uint16_t* contributions;  // workers summed in each chunk, any alignment
  std::size_t codes_per_chunk;         // a multiple of 64; the last chunk may be shorter
  std::uint16_t granularity;
  float threshold;         // of quantize
  const float* max_norms;  // layout.blocks()
};

/// out[layout.coordinates()] = inverse_rotate() of sum / contributions * step - limit (ClampRange). Before
/// inverse_rotate(), chunks without contributions are 0, and blocks whose max norm is not finite are NaN. Blocks of at
/// most 2^16 8-bit sums with equal contributions are transformed as integers, exactly, and mapped after: H maps the
/// constant limit to coordinate 0. pool: may be null.
void decode(ThreadPool* pool, const Aggregate& aggregate, const BlockLayout& layout, const RandomKey& key, Floats out);

}  // namespace thc
