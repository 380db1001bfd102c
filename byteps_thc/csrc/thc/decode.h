// From an aggregate back to the average gradient (paper, section 5.4): one affine map and the inverse rotation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "thc/block_layout.h"
#include "thc/float_format.h"
#include "thc/philox.h"

namespace thc {

/// Workers summed in each chunk: a byte each, as packets carry them, or two, of any alignment, where more than 255 sum.
class Contributions {
 public:
  Contributions() = default;
  // NOLINTBEGIN(google-explicit-constructor)
  Contributions(const std::uint8_t* counts) noexcept : counts_(counts) {}
  Contributions(const std::uint16_t* counts) noexcept : counts_(counts), wide_(true) {}
  // NOLINTEND(google-explicit-constructor)

  unsigned operator[](std::size_t chunk) const noexcept {
    const auto* bytes = static_cast<const std::uint8_t*>(counts_);
    if (!wide_) return bytes[chunk];
    std::uint16_t count = 0;
    std::memcpy(&count, bytes + chunk * sizeof(count), sizeof(count));
    return count;
  }

 private:
  const void* counts_ = nullptr;
  bool wide_ = false;
};

/// Sums of table values of one partition, as they came from the aggregator.
struct Aggregate {
  const void* sums;             // layout.padded() sums in host order, any alignment
  unsigned value_bits;          // 8 or 16
  Contributions contributions;  // of each chunk
  std::size_t codes_per_chunk;  // a multiple of 64; the last chunk may be shorter
  std::uint16_t granularity;
  float threshold;         // of quantize
  const float* max_norms;  // layout.blocks()
  std::size_t first = 0;   // where in the first chunk sums and max_norms begin; a multiple of 64
};

/// out[layout.coordinates()] = average gradient: sum / contributions * step - limit, see ClampRange, and inverse_rotate
/// of that, in one pass per block, the factor 1/d in the map. Before inverse_rotate, what a chunk without contributions
/// stands for is 0, and a block whose max norm is not finite is NaN. Blocks of up to 2^16 8-bit sums whose chunks all
/// have the same contributions are transformed as integers: t * slope with t = H sums exactly, less the limit at
/// coordinate 0 alone, as H maps a constant to d * e0.
void decode(const Aggregate& aggregate, const BlockLayout& layout, const RandomKey& key, Floats out);

}  // namespace thc
