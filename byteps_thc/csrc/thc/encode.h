// Gradient to codes and residual in one pass: rotate, quantize and rotate the error back while a tile is in the cache.
#pragma once

#include <cstddef>
#include <cstdint>

#include "thc/block_layout.h"
#include "thc/float_format.h"
#include "thc/lookup_table.h"
#include "thc/quantization.h"
#include "thc/thread_pool.h"

namespace thc {

/// rotate(), quantize() and, with options.keep_error, inverse_rotate() of the errors into `residual`, to the bit.
/// residual: layout.coordinates() floats, or null without keep_error. Returns the number of clamped coordinates. Throws
/// std::bad_alloc. pool: may be null.
std::size_t encode(ThreadPool* pool, ConstFloats gradient, float* residual, const float* max_norms,
                   const BlockLayout& layout, const LookupTable& table, const QuantizeOptions& options,
                   std::uint8_t* codes);

}  // namespace thc
