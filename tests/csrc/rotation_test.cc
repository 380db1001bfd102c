#include "thc/rotation.h"

#include <tuple>

#include "csrc/kernel_fixture.h"

namespace thc::testing {
namespace {

class Rotation : public EveryInstructionSet {};
THC_INSTANTIATE_EVERY_INSTRUCTION_SET(Rotation);

using Rotated = std::tuple<std::vector<std::uint32_t>, std::vector<std::uint32_t>>;

/// Rotated blocks and their norms before that.
Rotated run_rotate(ConstFloats gradient, const float* residual, const BlockLayout& layout, std::size_t misalignment) {
  Misaligned<float> rotated(layout.padded(), misalignment);
  Misaligned<float> norms(layout.blocks(), misalignment);
  rotate(gradient, residual, layout, kKey, rotated.data());
  block_norms(nullptr, gradient, residual, layout, norms.data());
  return {bits_of(rotated.values()), bits_of(norms.values())};
}

TEST_P(Rotation, GivesTheSameBitsForAllSizesAndBlocks) {
  for (const std::size_t size : kSizes) {
    for (std::size_t block = kMinRotationBlock; block <= 16384; block *= 2) {
      SCOPED_TRACE("size " + std::to_string(size) + ", block " + std::to_string(block));
      const std::vector<float> gradient = normal_floats(size);
      const BlockLayout layout(size, block);
      expect_same<Rotated>([&] { return run_rotate({gradient.data(), FloatFormat::kFp32}, nullptr, layout, 0); });
    }
  }
}

TEST_P(Rotation, GivesTheSameBitsWithResidualFormatsAndMisalignment) {
  for (const std::size_t size : {65UL, 1000UL, 8193UL}) {
    const BlockLayout layout(size, 1024);
    const std::vector<float> values = normal_floats(size);
    const std::vector<float> residual = normal_floats(size, 3);
    for (const FloatFormat format : {FloatFormat::kFp32, FloatFormat::kFp16, FloatFormat::kBf16}) {
      for (const std::size_t misalignment : {0UL, 1UL, 4UL, 31UL}) {
        SCOPED_TRACE("size " + std::to_string(size) + ", misalignment " + std::to_string(misalignment));
        Misaligned<std::uint8_t> gradient(size * float_bytes(format), misalignment);
        from_fp32(values.data(), size, {gradient.data(), format});
        Misaligned<float> carried(residual, misalignment);
        expect_same<Rotated>(
            [&] { return run_rotate({gradient.data(), format}, carried.data(), layout, misalignment); });
      }
    }
  }
}

TEST_P(Rotation, InverseGivesTheSameBits) {
  for (const std::size_t size : kSizes) {
    for (const std::size_t block : {64UL, 128UL, 256UL, 2048UL, 8192UL, 65536UL}) {
      SCOPED_TRACE("size " + std::to_string(size) + ", block " + std::to_string(block));
      const BlockLayout layout(size, block);
      const std::vector<float> rotated = normal_floats(layout.padded());
      expect_same<std::vector<std::uint32_t>>([&] {
        Misaligned<float> scratch(rotated, 3);
        Misaligned<float> out(size, 1);
        inverse_rotate(scratch.data(), layout, kKey, out.data());
        return bits_of(out.values());
      });
    }
  }
}

}  // namespace
}  // namespace thc::testing
