// The randomized Hadamard transform of rotation blocks (paper, section 5.1), not normalised.
#pragma once

#include <cstddef>

#include "thc/block_layout.h"
#include "thc/float_format.h"
#include "thc/philox.h"
#include "thc/thread_pool.h"

namespace thc {

/// norms[layout.blocks()] = Euclidean norms of gradient + residual (may be null), layout.coordinates() floats each.
/// pool: may be null.
void block_norms(ThreadPool* pool, ConstFloats gradient, const float* residual, const BlockLayout& layout,
                 float* norms);

/// rotated[layout.padded()] = H D (gradient + residual) per block. D flips signs by `key`; H is the Walsh-Hadamard
/// matrix of +-1 in natural order. `rotated` may not overlap the inputs.
void rotate(ConstFloats gradient, const float* residual, const BlockLayout& layout, const RandomKey& key,
            float* rotated);

/// out[layout.coordinates()] = (1/d) D H rotated[layout.padded()] per block of size d. `rotated` is left undefined.
void inverse_rotate(float* rotated, const BlockLayout& layout, const RandomKey& key, float* out);

}  // namespace thc
