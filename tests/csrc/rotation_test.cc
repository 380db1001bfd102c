#include "thc/rotation.h"

#include <cmath>
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
  block_norms(gradient, residual, layout, norms.data());
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

TEST_P(Rotation, GivesTheSameBitsForLargeBlocks) {
  const std::size_t size = (std::size_t{1} << 20) + 70000;
  const std::vector<float> gradient = normal_floats(size);
  for (std::size_t block = std::size_t{1} << 15; block <= kMaxRotationBlock; block *= 2) {
    SCOPED_TRACE("block " + std::to_string(block));
    const BlockLayout layout(size, block);
    expect_same<Rotated>([&] { return run_rotate({gradient.data(), FloatFormat::kFp32}, nullptr, layout, 0); });
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

TEST_P(Rotation, InverseRestoresGradientAndNormIsPreserved) {
  use_instruction_set(GetParam());
  const std::vector<float> gradient = normal_floats(21000);
  const BlockLayout layout(gradient.size(), kDefaultRotationBlock);
  std::vector<float> rotated(layout.padded());
  std::vector<float> norms(layout.blocks());
  rotate({gradient.data(), FloatFormat::kFp32}, nullptr, layout, kKey, rotated.data());
  block_norms({gradient.data(), FloatFormat::kFp32}, nullptr, layout, norms.data());
  for (std::size_t b = 0; b < layout.blocks(); ++b) {
    double squares = 0;
    for (std::size_t j = layout.offset(b); j < layout.offset(b) + layout.size(b); ++j) {
      squares += static_cast<double>(rotated[j]) * static_cast<double>(rotated[j]);
    }
    const double norm = std::sqrt(squares / static_cast<double>(layout.size(b)));
    EXPECT_NEAR(norm, norms[b], 1e-5 * norms[b]);
  }
  std::vector<float> restored(gradient.size());
  inverse_rotate(rotated.data(), layout, kKey, restored.data());
  for (std::size_t j = 0; j < gradient.size(); ++j) {
    ASSERT_NEAR(restored[j], gradient[j], 1e-5);
  }
}

}  // namespace
}  // namespace thc::testing
