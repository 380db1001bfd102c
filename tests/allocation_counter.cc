#include "allocation_counter.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<std::uint64_t> count{0};
thread_local unsigned calls_to_failure = 0;
}  // namespace

// Sanitizers bring allocators of their own, which check that new and delete match; replacing both here is sound. In a
// file of its own: where compilers inline one but not the other, they warn of a mismatch.
void* operator new(std::size_t size) {
  count.fetch_add(1, std::memory_order_relaxed);
  if (calls_to_failure != 0) {
    --calls_to_failure;
    if (calls_to_failure == 0) {
      throw std::bad_alloc();
    }
  }
  if (void* memory = std::malloc(size); memory != nullptr) {
    return memory;
  }
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace thc::testing {

std::uint64_t allocations() noexcept { return count.load(std::memory_order_relaxed); }

void fail_allocation(unsigned nth) noexcept { calls_to_failure = nth; }

}  // namespace thc::testing
