#include "thc/pack.h"

#include <cstring>
#include <utility>

#include "csrc/naive/twins.h"
#include "thc/bit_stream.h"

namespace thc::testing {
namespace {

class Pack : public BesideNaiveTwin {
 protected:
  template <class Number>
  void expect_like_naive(unsigned bits, std::size_t size) {
    SCOPED_TRACE(std::to_string(bits) + " bits, size " + std::to_string(size));
    std::vector<Number> numbers(size);  // bits above the number are to be ignored
    const std::vector<std::uint8_t> bytes = random_bytes(size * sizeof(Number));
    if (size > 0) {
      std::memcpy(numbers.data(), bytes.data(), bytes.size());
    }
    expect_same<std::pair<std::vector<std::uint8_t>, std::vector<Number>>>([&](const Kernels& kernels) {
      Misaligned<std::uint8_t> packed(code_bytes(size, bits), 1);
      Misaligned<Number> unpacked(size, 2);
      kernels.pack(numbers.data(), size, bits, packed.data());
      kernels.unpack(packed.data(), size, bits, unpacked.data());
      for (std::size_t i = 0; i < size; ++i) {
        EXPECT_EQ(unpacked.data()[i], numbers[i] & ((1U << bits) - 1U));
      }
      return std::pair(packed.values(), unpacked.values());
    });
  }
};
THC_INSTANTIATE_EVERY_INSTRUCTION_SET(Pack);

TEST_P(Pack, BytesThereAndBack) {
  for (unsigned bits = 1; bits <= 8; ++bits) {
    for (std::size_t size = 0; size <= 300; ++size) {
      expect_like_naive<std::uint8_t>(bits, size);
    }
  }
}

TEST_P(Pack, WordsThereAndBack) {
  for (unsigned bits = 1; bits <= 16; ++bits) {
    for (std::size_t size = 0; size <= 300; ++size) {
      expect_like_naive<std::uint16_t>(bits, size);
    }
  }
}

TEST_P(Pack, MostSignificantBitFirst) {
  use_instruction_set(GetParam());
  const std::vector<std::uint16_t> numbers(16, 0x0801);  // 12 bits: 1000 0000 0001
  std::vector<std::uint8_t> packed(24);
  pack(numbers.data(), numbers.size(), 12, packed.data());
  const std::vector<std::uint8_t> three_bytes = {0x80, 0x18, 0x01};
  for (std::size_t i = 0; i < packed.size(); ++i) {
    EXPECT_EQ(packed[i], three_bytes[i % 3]) << i;
  }
}

}  // namespace
}  // namespace thc::testing
