// Codes of 1 .. 8 bits to and from the packed stream of bit_stream.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace thc {

/// packed[code_bytes(count, bits)] = codes[count], lower `bits` of each; the last byte is padded with zeros.
void pack(const std::uint8_t* codes, std::size_t count, unsigned bits, std::uint8_t* packed) noexcept;
/// codes[count] = packed[code_bytes(count, bits)].
void unpack(const std::uint8_t* packed, std::size_t count, unsigned bits, std::uint8_t* codes) noexcept;

}  // namespace thc
