// Numbers that nobody can guess: the kernel's random source.
#pragma once

#include <cstdint>
#include <span>

namespace thc {

/// Fills `bytes` by getrandom(2), at most 256 of them. Ends the program when the kernel has no random source.
void fill_random(std::span<std::uint8_t> bytes) noexcept;

std::uint64_t random_uint64() noexcept;

/// Not 0, which in packets means none.
std::uint32_t random_epoch() noexcept;

}  // namespace thc
