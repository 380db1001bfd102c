// Counts calls of operator new in the program it is linked into, and lets one fail.
#pragma once

#include <cstdint>

namespace thc::testing {

/// Calls of operator new so far, in all threads.
std::uint64_t allocations() noexcept;

/// This thread's `nth` call of operator new from now on throws std::bad_alloc; 0: none does.
void fail_allocation(unsigned nth) noexcept;

}  // namespace thc::testing
