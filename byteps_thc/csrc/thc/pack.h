// Codes, or sums, to and from the packed stream of bit_stream.h. A number takes `bits` there: 1 .. 8 when it comes in a
// byte, 1 .. 16 when it comes in a uint16.
#pragma once

#include <cstddef>
#include <cstdint>

namespace thc {

/// packed[code_bytes(count, bits)] = numbers[count], lower `bits` of each; the last byte is padded with zeros.
void pack(const std::uint8_t* numbers, std::size_t count, unsigned bits, std::uint8_t* packed) noexcept;
void pack(const std::uint16_t* numbers, std::size_t count, unsigned bits, std::uint8_t* packed) noexcept;
/// numbers[count] = packed[code_bytes(count, bits)].
void unpack(const std::uint8_t* packed, std::size_t count, unsigned bits, std::uint8_t* numbers) noexcept;
void unpack(const std::uint8_t* packed, std::size_t count, unsigned bits, std::uint16_t* numbers) noexcept;

}  // namespace thc
