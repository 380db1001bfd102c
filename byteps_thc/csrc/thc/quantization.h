// Clamping and stochastic quantization of rotated blocks to packed codes (paper, sections 5.2 and 5.3).
#pragma once

#include <cstddef>
#include <cstdint>

#include "thc/block_layout.h"
#include "thc/float_format.h"
#include "thc/lookup_table.h"
#include "thc/philox.h"

namespace thc {

/// Options that determine the codes besides the coordinates.
struct QuantizeOptions {
  float threshold;    // coordinates are clamped to +-threshold * max norm
  RandomKey key;      // with `rounding`, selects the rounding bits
  Rounding rounding;  // of this worker
  bool keep_error;    // overwrite rotated with rotated - quantized
  // Floats of the next coordinates, prefetched into L2 while the memory is idle; null: none.
  const float* next_gradient = nullptr;
  const float* next_residual = nullptr;
};

/// codes[code_bytes(layout.padded(), table.bits())] = packed codes of rotated[layout.padded()], rounded without bias.
/// Blocks with a zero max norm get the middle codes, with a non-finite one code 0 and no error. With a finite one, NaN
/// gets any code. Returns the number of clamped coordinates.
std::size_t quantize(float* rotated, const float* max_norms, const BlockLayout& layout, const LookupTable& table,
                     const QuantizeOptions& options, std::uint8_t* codes);

}  // namespace thc
