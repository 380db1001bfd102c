// Per-thread working memory of the kernels: a block is transformed in cache, and its memory is reused by the next call.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace thc {

/// At least `count` floats, aligned for vectors, valid until the thread asks again. Throws std::bad_alloc.
inline float* block_scratch(std::size_t count) {
  static constexpr std::align_val_t kAlignment{128};  // two cache lines, which processors fetch together
  struct Free {
    void operator()(float* floats) const noexcept { ::operator delete(floats, kAlignment); }
  };
  thread_local std::unique_ptr<float, Free> buffer;
  thread_local std::size_t capacity = 0;
  if (count > capacity) {
    buffer.reset();
    capacity = 0;
    buffer.reset(static_cast<float*>(::operator new(count * sizeof(float), kAlignment)));
    capacity = count;
  }
  return buffer.get();
}

}  // namespace thc
