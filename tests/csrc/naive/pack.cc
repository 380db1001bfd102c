#include <algorithm>

#include "csrc/naive/kernels.h"
#include "thc/bit_stream.h"

namespace thc::naive {

void pack(const std::uint8_t* codes, std::size_t count, unsigned bits, std::uint8_t* packed) noexcept {
  std::fill_n(packed, code_bytes(count, bits), std::uint8_t{0});
  for (std::size_t i = 0; i < count * bits; ++i) {
    const unsigned bit = (codes[i / bits] >> (bits - 1 - i % bits)) & 1U;
    packed[i / 8] = static_cast<std::uint8_t>(packed[i / 8] | (bit << (7 - i % 8)));
  }
}

void unpack(const std::uint8_t* packed, std::size_t count, unsigned bits, std::uint8_t* codes) noexcept {
  std::fill_n(codes, count, std::uint8_t{0});
  for (std::size_t i = 0; i < count * bits; ++i) {
    const unsigned bit = (packed[i / 8] >> (7 - i % 8)) & 1U;
    codes[i / bits] = static_cast<std::uint8_t>((codes[i / bits] << 1) | bit);
  }
}

}  // namespace thc::naive
