// Clamping and stochastic quantization of rotated blocks to packed codes (paper, sections 5.2 and 5.3).
#pragma once

#include <cstddef>
#include <cstdint>

#include "thc/block_layout.h"
#include "thc/float_format.h"
#include "thc/lookup_table.h"
#include "thc/philox.h"

namespace thc {

/// What decides the codes besides the coordinates.
struct QuantizeOptions {
  float threshold;    // coordinates are clamped to +-threshold * max norm
  RandomKey key;      // with `rounding`, selects the rounding bits
  Rounding rounding;  // of this worker
  bool keep_error;    // overwrite rotated with rotated - quantized
  // What the caller reads next, brought into L2 meanwhile: a float of each per coordinate; null for nothing.
  // Computing leaves the memory idle that rotating waits for.
  const float* next_gradient = nullptr;
  const float* next_residual = nullptr;
};

/// codes[code_bytes(layout.padded(), table.bits())] = packed codes of rotated[layout.padded()]; max_norms[blocks()].
/// A coordinate between two table values is rounded up with the probability that keeps its expectation. Blocks with a
/// zero max norm get the middle codes; with a non-finite one code 0 and no error. Where the max norm is finite, a NaN
/// gets any code. Returns the number of coordinates that were clamped.
std::size_t quantize(float* rotated, const float* max_norms, const BlockLayout& layout, const LookupTable& table,
                     const QuantizeOptions& options, std::uint8_t* codes);

}  // namespace thc
