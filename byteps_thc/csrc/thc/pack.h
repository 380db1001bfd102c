// Packed codes of 1 .. 8 bits: a stream of `bits`-wide fields, most significant bit first.
#pragma once

#include <cstddef>
#include <cstdint>

namespace thc {

/// Bytes of `count` packed codes.
constexpr std::size_t code_bytes(std::size_t count, unsigned bits) noexcept { return (count * bits + 7) / 8; }

/// Code `i` of a packed stream, bits <= 8.
inline unsigned read_code(const std::uint8_t* packed, std::size_t i, unsigned bits) noexcept {
  const std::size_t first_bit = i * bits;
  const std::size_t byte = first_bit / 8;
  const auto shift = static_cast<unsigned>(first_bit % 8);
  unsigned window = static_cast<unsigned>(packed[byte]) << 8;
  if (shift + bits > 8) {  // the last byte has no successor to read
    window |= packed[byte + 1];
  }
  return (window >> (16 - shift - bits)) & ((1U << bits) - 1U);
}

/// packed[code_bytes(count, bits)] = codes[count], lower `bits` of each; the last byte is padded with zeros.
void pack(const std::uint8_t* codes, std::size_t count, unsigned bits, std::uint8_t* packed) noexcept;
/// codes[count] = packed[code_bytes(count, bits)].
void unpack(const std::uint8_t* packed, std::size_t count, unsigned bits, std::uint8_t* codes) noexcept;

}  // namespace thc
