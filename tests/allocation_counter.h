// Counts calls of operator new in the program it is linked into.
#pragma once

#include <cstdint>

namespace thc::testing {

/// Calls of operator new so far, in all threads.
std::uint64_t allocations() noexcept;

}  // namespace thc::testing
