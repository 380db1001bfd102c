#include "thc/quantization.h"

#include <limits>
#include <tuple>

#include "csrc/kernel_fixture.h"
#include "thc/pack.h"

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

}  // namespace
}  // namespace thc::testing
