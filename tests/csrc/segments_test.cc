#include "thc/segments.h"

#include <cmath>
#include <numeric>

#include "csrc/kernel_fixture.h"

namespace thc::testing {
namespace {

constexpr std::size_t kCoordinates = 300'001;  // several tasks

/// Segments of many sizes, some with gaps behind them; some are longer than a tile, some empty, as the last.
struct Case {
  std::vector<std::uint64_t> starts;
  std::vector<std::uint64_t> sizes;
  Segments segments() const { return {starts, sizes}; }
};

Case cut() {
  constexpr std::uint64_t kSizes[] = {1, 32, 50, 16, 0, 5000, 3, 300, 64, 131'072};
  Case result;
  std::uint64_t at = 5;
  for (std::size_t i = 0; at + kSizes[i % std::size(kSizes)] <= kCoordinates; ++i) {
    result.starts.push_back(at);
    result.sizes.push_back(kSizes[i % std::size(kSizes)]);
    at += result.sizes.back() + (i % 3 == 0 ? 7 : 0);
  }
  result.starts.push_back(kCoordinates);
  result.sizes.push_back(0);
  return result;
}

class SegmentsTest : public EveryInstructionSet {};
THC_INSTANTIATE_EVERY_INSTRUCTION_SET(SegmentsTest);

TEST_P(SegmentsTest, NormsAreThoseOfTheirCoordinates) {
  use_instruction_set(GetParam());
  const Case c = cut();
  const std::vector<float> gradient = normal_floats(kCoordinates);
  const std::vector<float> residual = normal_floats(kCoordinates, 3);
  std::vector<std::uint16_t> halves(kCoordinates);
  from_fp32(residual.data(), kCoordinates, {halves.data(), FloatFormat::kBf16});
  std::vector<float> alone(c.starts.size(), -1.0F);
  segment_norms(nullptr, {gradient.data()}, {halves.data(), FloatFormat::kBf16}, c.segments(), alone.data());
  for (std::size_t i = 0; i < alone.size(); ++i) {
    double squares = 0;
    for (std::size_t k = c.starts[i]; k < c.starts[i] + c.sizes[i]; ++k) {
      const float sum = gradient[k] + naive::bf16_to_fp32(halves[k]);
      squares += static_cast<double>(sum) * sum;
    }
    ASSERT_FLOAT_EQ(alone[i], static_cast<float>(std::sqrt(squares))) << "segment " << i;
  }
  for (const unsigned threads : {2U, 3U}) {
    ThreadPool pool(threads);
    std::vector<float> together(c.starts.size(), -1.0F);
    segment_norms(&pool, {gradient.data()}, {halves.data(), FloatFormat::kBf16}, c.segments(), together.data());
    EXPECT_EQ(bits_of(together), bits_of(alone));
  }
}

TEST_P(SegmentsTest, ScalesSegmentsAndLeavesWhatIsBetween) {
  use_instruction_set(GetParam());
  const Case c = cut();
  const std::vector<float> gradient = normal_floats(kCoordinates);
  const std::vector<float> residual = normal_floats(kCoordinates, 3);
  std::vector<float> factors = normal_floats(c.starts.size(), 4);
  factors[1] = factors[5] = 0.0F;
  std::vector<float> expected(kCoordinates);
  for (std::size_t k = 0; k < kCoordinates; ++k) expected[k] = gradient[k] + residual[k];
  for (std::size_t i = 0; i < c.starts.size(); ++i) {
    for (std::size_t k = c.starts[i]; k < c.starts[i] + c.sizes[i]; ++k) expected[k] = expected[k] * factors[i] + 0.0F;
  }
  for (const unsigned threads : {1U, 3U}) {
    for (const std::size_t misalignment : {0UL, 1UL, 31UL}) {
      ThreadPool pool(threads);
      Misaligned<float> out(gradient, misalignment);
      scale_segments(&pool, {out.data()}, {residual.data()}, kCoordinates, c.segments(), factors.data(), {out.data()});
      EXPECT_EQ(bits_of(out.values()), bits_of(expected)) << threads << " threads";
    }
  }
  for (const FloatFormat format : {FloatFormat::kFp16, FloatFormat::kBf16}) {
    std::vector<std::uint16_t> halves(kCoordinates);
    std::vector<std::uint16_t> wanted(kCoordinates);
    scale_segments(nullptr, {gradient.data()}, {residual.data()}, kCoordinates, c.segments(), factors.data(),
                   {halves.data(), format});
    from_fp32(expected.data(), kCoordinates, {wanted.data(), format});
    EXPECT_EQ(halves, wanted);
  }
}

TEST(Segments, NoneAreNoWork) {
  std::vector<float> values = normal_floats(100);
  const std::vector<float> before = values;
  segment_norms(nullptr, {values.data()}, {}, {}, nullptr);
  scale_segments(nullptr, {values.data()}, {}, values.size(), {}, nullptr, {values.data()});
  EXPECT_EQ(bits_of(values), bits_of(before));
  EXPECT_EQ(Segments{}.behind(7), 0U);
}

}  // namespace
}  // namespace thc::testing
