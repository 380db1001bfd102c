// The kernels, with the coordinates of a call divided among the threads of a pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "thc/block_codes.h"
#include "thc/block_layout.h"
#include "thc/decode.h"
#include "thc/float_format.h"
#include "thc/lookup_table.h"
#include "thc/philox.h"
#include "thc/quantization.h"
#include "thc/thread_pool.h"

/// The kernels of the same names, to the bit for any number of threads. pool: null, or a small call: the calling thread
/// works alone. std::bad_alloc of any thread reaches the caller.
namespace thc::threaded {

void block_norms(ThreadPool* pool, ConstFloats gradient, const float* residual, const BlockLayout& layout,
                 float* norms);
std::size_t encode(ThreadPool* pool, ConstFloats gradient, float* residual, const float* max_norms,
                   const BlockLayout& layout, const LookupTable& table, const QuantizeOptions& options,
                   std::uint8_t* codes);
void decode(ThreadPool* pool, const Aggregate& aggregate, const BlockLayout& layout, const RandomKey& key, Floats out);
void encode_blocks(ThreadPool* pool, ConstFloats gradient, Blocks blocks, const BlockRandom& random, unsigned bits,
                   std::uint8_t* codes, std::uint8_t* scales);
std::uint32_t decode_blocks(ThreadPool* pool, std::span<const BlockCodes> ranks, Blocks blocks,
                            const BlockRandom& random, unsigned bits, Floats out);
void recode_blocks(ThreadPool* pool, std::span<const BlockCodes> ranks, Blocks blocks, const BlockRandom& up,
                   unsigned bits, const BlockRandom& down, unsigned down_bits, std::uint8_t* codes,
                   std::uint8_t* scales);

}  // namespace thc::threaded
