// Per-thread working memory of the kernels: a block is transformed in cache, and its memory is reused by the next call.
#pragma once

#include <hwy/aligned_allocator.h>

#include <cstddef>
#include <new>

namespace thc {

/// At least `count` floats, aligned for vectors, valid until the thread asks again. Throws std::bad_alloc.
inline float* block_scratch(std::size_t count) {
  thread_local hwy::AlignedFreeUniquePtr<float[]> buffer;
  thread_local std::size_t capacity = 0;
  if (count > capacity) {
    buffer = hwy::AllocateAligned<float>(count);
    if (!buffer) {
      capacity = 0;
      throw std::bad_alloc();
    }
    capacity = count;
  }
  return buffer.get();
}

}  // namespace thc
