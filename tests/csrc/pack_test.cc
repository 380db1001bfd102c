#include "thc/pack.h"

#include "csrc/kernel_fixture.h"

namespace thc::testing {
namespace {

class Pack : public EveryInstructionSet {};
THC_INSTANTIATE_EVERY_INSTRUCTION_SET(Pack);

TEST_P(Pack, ThereAndBack) {
  use_instruction_set(GetParam());
  for (unsigned bits = 1; bits <= 8; ++bits) {
    for (std::size_t size = 0; size <= 300; ++size) {
      SCOPED_TRACE(std::to_string(bits) + " bits, size " + std::to_string(size));
      const std::vector<std::uint8_t> codes = random_bytes(size);  // bits above the code are to be ignored
      Misaligned<std::uint8_t> packed(code_bytes(size, bits), 1);
      Misaligned<std::uint8_t> unpacked(size, 2);
      pack(codes.data(), size, bits, packed.data());
      unpack(packed.data(), size, bits, unpacked.data());
      const std::vector<std::uint8_t> stream = packed.values();
      const std::vector<std::uint8_t> back = unpacked.values();
      for (std::size_t i = 0; i < size; ++i) {
        EXPECT_EQ(read_code(stream.data(), i, bits), codes[i] & ((1U << bits) - 1U));
        EXPECT_EQ(back[i], codes[i] & ((1U << bits) - 1U));
      }
    }
  }
}

}  // namespace
}  // namespace thc::testing
