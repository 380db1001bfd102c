// From an aggregate back to the average gradient (paper, section 5.4): one affine map and the inverse rotation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "thc/block_layout.h"
#include "thc/float_format.h"
#include "thc/philox.h"
#include "thc/thread_pool.h"

namespace thc {

/// Workers summed in each chunk: a byte each, or two, of any alignment, for more than 255 workers.
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
};

/// out[layout.coordinates()] = inverse_rotate() of sum / contributions * step - limit (ClampRange). Before
/// inverse_rotate(), chunks without contributions are 0, and blocks whose max norm is not finite are NaN. Blocks of at
/// most 2^16 8-bit sums with equal contributions are transformed as integers, exactly, and mapped after: H maps the
/// constant limit to coordinate 0. pool: may be null.
void decode(ThreadPool* pool, const Aggregate& aggregate, const BlockLayout& layout, const RandomKey& key, Floats out);

}  // namespace thc
