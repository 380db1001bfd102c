#include <algorithm>

#include "csrc/naive/kernels.h"
#include "thc/bit_stream.h"

namespace thc::naive {
namespace {

template <class Number>
void pack_bits(const Number* numbers, std::size_t count, unsigned bits, std::uint8_t* packed) noexcept {
  std::fill_n(packed, code_bytes(count, bits), std::uint8_t{0});
  for (std::size_t i = 0; i < count * bits; ++i) {
    const unsigned bit = (numbers[i / bits] >> (bits - 1 - i % bits)) & 1U;
    packed[i / 8] = static_cast<std::uint8_t>(packed[i / 8] | (bit << (7 - i % 8)));
  }
}

template <class Number>
void unpack_bits(const std::uint8_t* packed, std::size_t count, unsigned bits, Number* numbers) noexcept {
  std::fill_n(numbers, count, Number{0});
  for (std::size_t i = 0; i < count * bits; ++i) {
    const unsigned bit = (packed[i / 8] >> (7 - i % 8)) & 1U;
    numbers[i / bits] = static_cast<Number>((numbers[i / bits] << 1) | bit);
  }
}

}  // namespace

void pack(const std::uint8_t* numbers, std::size_t count, unsigned bits, std::uint8_t* packed) noexcept {
  pack_bits(numbers, count, bits, packed);
}

void pack(const std::uint16_t* numbers, std::size_t count, unsigned bits, std::uint8_t* packed) noexcept {
  pack_bits(numbers, count, bits, packed);
}

void unpack(const std::uint8_t* packed, std::size_t count, unsigned bits, std::uint8_t* numbers) noexcept {
  unpack_bits(packed, count, bits, numbers);
}

void unpack(const std::uint8_t* packed, std::size_t count, unsigned bits, std::uint16_t* numbers) noexcept {
  unpack_bits(packed, count, bits, numbers);
}

}  // namespace thc::naive
