#include "thc/quantization.h"

#include <cmath>
#include <limits>
#include <tuple>

#include "csrc/kernel_fixture.h"
#include "thc/bit_stream.h"

namespace thc::testing {
namespace {

constexpr float kThreshold = 2.0F;

class Quantization : public EveryInstructionSet {};
THC_INSTANTIATE_EVERY_INSTRUCTION_SET(Quantization);

/// Codes, errors and number of clamped coordinates.
using Quantized = std::tuple<std::vector<std::uint8_t>, std::vector<std::uint32_t>, std::size_t>;

Quantized run_quantize(const std::vector<float>& x, const std::vector<float>& max_norms, const BlockLayout& layout,
                       const LookupTable& table, bool keep_error, std::size_t misalignment = 0) {
  Misaligned<float> rotated(x, misalignment);
  Misaligned<float> norms(max_norms, misalignment);
  Misaligned<std::uint8_t> codes(code_bytes(layout.padded(), table.bits()), misalignment);
  const QuantizeOptions options{kThreshold, kKey, {4, 0x5555}, keep_error};
  const std::size_t clamped = quantize(rotated.data(), norms.data(), layout, table, options, codes.data());
  return {codes.values(), bits_of(rotated.values()), clamped};
}

TEST_P(Quantization, GivesTheSameBitsForAllBitsAndSizes) {
  for (const unsigned bits : {1U, 2U, 3U, 4U, 5U, 6U, 7U, 8U}) {
    // Grids of every kind of lookup: a byte per point, cells of one and more points, a word per point, any.
    for (const LookupTable& table : {identity_table(bits), uneven_table(bits), uneven_table(bits, 2),
                                     uneven_table(bits, 3), uneven_table(bits, 40)}) {
      for (const std::size_t size : kSizes) {
        SCOPED_TRACE(std::to_string(bits) + " bits, g " + std::to_string(table.granularity()) + ", size " +
                     std::to_string(size));
        const BlockLayout layout(size, 1024);
        const std::vector<float> x = normal_floats(layout.padded());
        const std::vector<float> norms(layout.blocks(), 0.9F);
        expect_same<Quantized>([&] { return run_quantize(x, norms, layout, table, size % 2 == 0, size % 5); });
      }
    }
  }
}

TEST_P(Quantization, GivesTheSameBitsForExtremeNorms) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> extremes = {0.0F,      std::numeric_limits<float>::denorm_min(), 1e-38F, 3e38F,
                                       kInfinity, std::numeric_limits<float>::quiet_NaN(),  1e-6F,  1e6F};
  const BlockLayout layout(64 * extremes.size(), 64);
  std::vector<float> x = normal_floats(layout.padded());
  x[64 * 6 + 1] = kInfinity;
  x[64 * 6 + 2] = -kInfinity;
  for (const bool keep_error : {false, true}) {
    expect_same<Quantized>([&] { return run_quantize(x, extremes, layout, uneven_table(4), keep_error); });
  }
}

/// Coordinates at and next to the limit, where clamping before or after scaling must not matter.
TEST_P(Quantization, GivesTheSameBitsAroundTheLimit) {
  constexpr std::size_t kSize = 8192;
  const BlockLayout layout(kSize, kSize);
  for (const LookupTable& table : {identity_table(4), uneven_table(4), uneven_table(4, 2), short_table(4, 7),
                                   short_table(4, 1), short_table(8, 100), uneven_table(5), uneven_table(5, 33),
                                   uneven_table(6, 2), uneven_table(8), identity_table(6), identity_table(8)}) {
    for (const float norm : {1.0F, 0.7F, 1e-20F, 12345.678F}) {
      std::vector<float> x(kSize);
      for (std::size_t i = 0; i < kSize; ++i) {
        const float steps = static_cast<float>(i % 17) - 8.0F;
        x[i] = (i % 2 == 0 ? 1.0F : -1.0F) * kThreshold * norm * (1.0F + steps * 0x1p-24F);
      }
      expect_same<Quantized>([&] { return run_quantize(x, {norm}, layout, table, true, 1); });
    }
  }
}

TEST_P(Quantization, ZeroAndNonFiniteNorms) {
  use_instruction_set(GetParam());
  const BlockLayout layout(128, 64);
  const std::vector<float> x(128, 0.0F);
  const auto [codes, errors, clamped] =
      run_quantize(x, {0.0F, std::numeric_limits<float>::infinity()}, layout, identity_table(4), true);
  for (std::size_t i = 0; i < 64; ++i) {  // 7.5 rounds to one of the middle codes
    EXPECT_TRUE(read_code(codes.data(), i, 4) == 7 || read_code(codes.data(), i, 4) == 8);
    EXPECT_EQ(read_code(codes.data(), 64 + i, 4), 0U);
  }
  EXPECT_EQ(errors, std::vector<std::uint32_t>(128, 0));
  EXPECT_EQ(clamped, 0U);
}

TEST_P(Quantization, CodesAboveTheGranularityAreNotUsed) {
  use_instruction_set(GetParam());
  const BlockLayout layout(std::size_t{1} << 14, 1024);
  const std::vector<float> x = normal_floats(layout.padded());
  for (const std::uint16_t granularity : {1, 7, 14}) {
    const std::vector<float> norms(layout.blocks(), 0.5F);
    const auto [codes, errors, clamped] = run_quantize(x, norms, layout, short_table(4, granularity), false);
    std::uint32_t largest = 0;
    for (std::size_t i = 0; i < layout.padded(); ++i) {
      largest = std::max<std::uint32_t>(largest, read_code(codes.data(), i, 4));
    }
    EXPECT_EQ(largest, granularity);
    EXPECT_GT(clamped, 0U);
  }
}

TEST_P(Quantization, IsUnbiasedInsideTheRange) {
  use_instruction_set(GetParam());
  const LookupTable table = uneven_table(4);
  const BlockLayout layout(std::size_t{1} << 16, 65536);
  for (const float value : {-1.7F, -0.31F, 0.0F, 0.5F, 1.99F}) {
    const std::vector<float> x(layout.padded(), value);
    const auto [codes, errors, clamped] = run_quantize(x, {1.0F}, layout, table, true);
    double error = 0;
    for (const std::uint32_t bits : errors) {
      error += static_cast<double>(std::bit_cast<float>(bits));
    }
    // One gap is at most 3 of g = 30 steps over 4: sigma of the mean of 65536 errors is below 0.2 / 256.
    EXPECT_NEAR(error / static_cast<double>(errors.size()), 0.0, 5 * 0.2 / 256) << value;
    EXPECT_EQ(clamped, 0U);
  }
}

TEST_P(Quantization, CountsAndClampsOutliers) {
  use_instruction_set(GetParam());
  const BlockLayout layout(64, 64);
  std::vector<float> x(64, 0.0F);
  x[3] = 2.5F;
  x[5] = -100.0F;
  x[6] = 2.0F;  // the limit itself
  const auto [codes, errors, clamped] = run_quantize(x, {1.0F}, layout, identity_table(4), true);
  EXPECT_EQ(clamped, 2U);
  EXPECT_EQ(read_code(codes.data(), 3, 4), 15U);
  EXPECT_EQ(read_code(codes.data(), 5, 4), 0U);
  EXPECT_EQ(read_code(codes.data(), 6, 4), 15U);
  EXPECT_EQ(std::bit_cast<float>(errors[5]), -98.0F);
}

}  // namespace
}  // namespace thc::testing
