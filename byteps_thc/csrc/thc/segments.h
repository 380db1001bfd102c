// Runs of coordinates with a scale of their own, such as the rows of an embedding: of any length, and at any place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "thc/float_format.h"
#include "thc/thread_pool.h"

namespace thc {

/// Ascending and disjoint segments of a partition. sizes[i] coordinates from starts[i] on.
struct Segments {
  std::span<const std::uint64_t> starts;
  std::span<const std::uint64_t> sizes;

  std::size_t count() const noexcept { return starts.size(); }
  std::size_t end(std::size_t i) const noexcept { return starts[i] + sizes[i]; }
  /// The first segment that ends behind `coordinate`; count() if none does.
  std::size_t behind(std::size_t coordinate) const noexcept;
};

/// norms[segments.count()] = Euclidean norms of gradient + residual (may be none) in each segment, with the sums of
/// lane_sums.h. pool: may be null; the bits are the same for any number of threads.
void segment_norms(ThreadPool* pool, ConstFloats gradient, ConstFloats residual, const Segments& segments,
                   float* norms);

/// out[count] = (in + addend) * factors[i] + 0 in segment i, so that a factor of 0 gives +0; in + addend elsewhere.
/// addend: may be none. out may be `in` or `addend`, and may have another format.
void scale_segments(ThreadPool* pool, ConstFloats in, ConstFloats addend, std::size_t count, const Segments& segments,
                    const float* factors, Floats out);

}  // namespace thc
