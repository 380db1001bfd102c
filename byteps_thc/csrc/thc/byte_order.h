// Integers stored in network byte order. Their alignment is 1, so their structs map onto packets at any address.
#pragma once

#include <array>
#include <bit>
#include <concepts>
#include <cstdint>
#include <cstring>

namespace thc {

/// Reverses the bytes of `value` (std::byteswap is C++23).
template <std::unsigned_integral T>
constexpr T byte_swap(T value) noexcept {
  if constexpr (sizeof(T) == 1) {
    return value;
  } else if constexpr (sizeof(T) == 2) {
    return __builtin_bswap16(value);
  } else if constexpr (sizeof(T) == 4) {
    return __builtin_bswap32(value);
  } else {
    return __builtin_bswap64(value);
  }
}

/// Host to network order and back (the two are the same operation).
template <std::unsigned_integral T>
constexpr T to_big_endian(T value) noexcept {
  return std::endian::native == std::endian::little ? byte_swap(value) : value;
}

/// An unsigned integer in network byte order. `Bytes` may be less than sizeof(T) (24-bit fields).
template <std::unsigned_integral T, std::size_t Bytes = sizeof(T)>
class BigEndian {
 public:
  constexpr BigEndian() = default;
  // Implicit on purpose: `header.round = round` should read as an assignment.
  constexpr BigEndian(T value) noexcept {  // NOLINT(google-explicit-constructor)
    for (std::size_t i = 0; i < Bytes; ++i) {
      bytes_[i] = static_cast<std::uint8_t>(value >> (8 * (Bytes - 1 - i)));
    }
  }
  constexpr operator T() const noexcept {  // NOLINT(google-explicit-constructor)
    T value = 0;
    for (std::size_t i = 0; i < Bytes; ++i) {
      value = static_cast<T>(static_cast<T>(value << 8) | bytes_[i]);
    }
    return value;
  }

 private:
  std::array<std::uint8_t, Bytes> bytes_{};
};

using be8_t = BigEndian<std::uint8_t>;
using be16_t = BigEndian<std::uint16_t>;
using be24_t = BigEndian<std::uint32_t, 3>;
using be32_t = BigEndian<std::uint32_t>;
using be64_t = BigEndian<std::uint64_t>;

}  // namespace thc
