#include "thc/decode.h"

#include <bit>
#include <cmath>
#include <limits>

#include "csrc/kernel_fixture.h"
#include "thc/lookup_sum.h"
#include "thc/quantization.h"
#include "thc/rotation.h"

namespace thc::testing {
namespace {

class Decode : public EveryInstructionSet {};
THC_INSTANTIATE_EVERY_INSTRUCTION_SET(Decode);

enum class Loss { kNone, kSome };

/// Contributions of `chunks` chunks: three everywhere, or all of 0..4.
template <class Count>
std::vector<Count> chunk_contributions(std::size_t chunks, Loss loss) {
  std::vector<Count> contributions(chunks, 3);
  for (std::size_t i = 0; loss == Loss::kSome && i < chunks; ++i) {
    contributions[i] = static_cast<Count>(i % 5);
  }
  return contributions;
}

std::vector<float> random_norms(std::size_t count) {
  std::vector<float> norms = normal_floats(count);
  for (float& norm : norms) {
    norm = std::fabs(norm);
  }
  return norms;
}

/// An aggregate with random sums over the whole range of their type.
struct RandomAggregate {
  RandomAggregate(const BlockLayout& layout, unsigned value_bits, std::size_t codes_per_chunk, std::size_t misalignment,
                  Loss loss = Loss::kSome)
      : sums(random_bytes(layout.padded() * value_bits / 8), misalignment),
        contributions(
            chunk_contributions<std::uint8_t>((layout.padded() + codes_per_chunk - 1) / codes_per_chunk, loss)),
        max_norms(random_norms(layout.blocks()), misalignment) {
    view = {sums.data(), value_bits, contributions.data(), codes_per_chunk, 30, 2.15F, max_norms.data()};
  }
  Misaligned<std::uint8_t> sums;
  std::vector<std::uint8_t> contributions;
  Misaligned<float> max_norms;
  Aggregate view;
};

TEST_P(Decode, GivesTheSameBits) {
  for (const std::size_t size : kSizes) {
    for (const std::size_t block : {64UL, 256UL, 1024UL, 8192UL}) {
      for (const unsigned value_bits : {8U, 16U}) {
        for (const std::size_t chunk : {64UL, 192UL, 1024UL, 10048UL}) {
          SCOPED_TRACE("size " + std::to_string(size) + ", block " + std::to_string(block) + ", chunk " +
                       std::to_string(chunk));
          const BlockLayout layout(size, block);
          const Loss loss = (block + size) % 2 == 0 ? Loss::kNone : Loss::kSome;
          const RandomAggregate aggregate(layout, value_bits, chunk, size % 3, loss);
          for (const FloatFormat format : {FloatFormat::kFp32, FloatFormat::kFp16, FloatFormat::kBf16}) {
            expect_same<std::vector<std::uint8_t>>([&] {
              Misaligned<std::uint8_t> out(size * float_bytes(format), 1);
              decode(aggregate.view, layout, kKey, Floats{out.data(), format});
              return out.values();
            });
          }
        }
      }
    }
  }
}

/// All sums 0 or 255, in the pattern of one row of the Hadamard matrix: the largest transforms there are.
TEST_P(Decode, LargestSumsDoNotOverflow) {
  use_instruction_set(GetParam());
  constexpr std::size_t kSize = 8192;
  const BlockLayout layout(kSize, kSize);
  const std::vector<std::uint8_t> contributions(kSize / 1024, 1);
  const float norm = 1.0F;
  for (const std::size_t row : {std::size_t{0}, std::size_t{1}, std::size_t{64}, std::size_t{4096}, kSize - 1}) {
    for (const bool inverted : {false, true}) {
      std::vector<std::uint8_t> sums(kSize);
      for (std::size_t j = 0; j < kSize; ++j) {
        const bool minus = std::popcount(row & j) % 2 != 0;
        sums[j] = minus != inverted ? 0 : 255;
      }
      std::vector<float> out(kSize);
      decode({sums.data(), 8, contributions.data(), 1024, 255, 0.5F, &norm}, layout, kKey,
             {out.data(), FloatFormat::kFp32});
      // Sums of 0 and 255 stand for -1/2 and 1/2.
      for (std::size_t k = 0; k < kSize; ++k) {
        ASSERT_NEAR(std::fabs(out[k]), k == row ? 0.5F : 0.0F, 1e-6F) << "row " << row << ", coordinate " << k;
      }
    }
  }
}

TEST_P(Decode, SixteenBitContributionsDecodeAsEightBitOnes) {
  use_instruction_set(GetParam());
  const BlockLayout layout(21000, 8192);
  for (const unsigned value_bits : {8U, 16U}) {
    for (const Loss loss : {Loss::kNone, Loss::kSome}) {
      const RandomAggregate narrow(layout, value_bits, 1024, 1, loss);
      Misaligned<std::uint16_t> wide(chunk_contributions<std::uint16_t>(narrow.contributions.size(), loss), 1);
      std::vector<std::vector<std::uint32_t>> averages;
      for (const Contributions contributions : {narrow.view.contributions, Contributions(wide.data())}) {
        Aggregate aggregate = narrow.view;
        aggregate.contributions = contributions;
        std::vector<float> average(layout.coordinates());
        decode(aggregate, layout, kKey, {average.data(), FloatFormat::kFp32});
        averages.push_back(bits_of(average));
      }
      EXPECT_EQ(averages[0], averages[1]);
    }
  }
}

TEST_P(Decode, AThousandWorkersAverage) {
  use_instruction_set(GetParam());
  const BlockLayout layout(256, 256);
  constexpr std::uint16_t kWorkers = 1024;
  constexpr std::uint16_t kGranularity = 63;
  const std::vector<std::uint16_t> sums(256, kWorkers * kGranularity);  // all of them at the upper clamp
  const std::uint16_t contributions = kWorkers;
  const float norm = 1.0F;
  std::vector<float> average(256);
  decode({sums.data(), 16, &contributions, 256, kGranularity, 2.5F, &norm}, layout, kKey,
         {average.data(), FloatFormat::kFp32});
  // A constant is the transform of one coordinate.
  for (std::size_t j = 0; j < average.size(); ++j) EXPECT_NEAR(std::fabs(average[j]), j == 0 ? 2.5F : 0.0F, 1e-6F);
}

TEST_P(Decode, NonFiniteAndZeroNorms) {
  use_instruction_set(GetParam());
  const BlockLayout layout(256, 64);
  const std::vector<std::uint8_t> sums(256, 30);
  const std::vector<std::uint8_t> contributions = {2, 2, 2, 0};
  const std::vector<float> norms = {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(),
                                    0.0F, 1.0F};
  std::vector<float> average(256);
  decode({sums.data(), 8, contributions.data(), 64, 30, 2.15F, norms.data()}, layout, kKey,
         {average.data(), FloatFormat::kFp32});
  for (std::size_t j = 0; j < 128; ++j) {
    EXPECT_TRUE(std::isnan(average[j]));
    EXPECT_EQ(average[128 + j], 0.0F);
  }
}

TEST_P(Decode, RoundTripOfFourWorkersIsCloseToTheirAverage) {
  use_instruction_set(GetParam());
  const LookupTable table = identity_table(4);
  const BlockLayout layout(21000, 8192);
  constexpr unsigned kWorkers = 4;
  std::vector<float> rotated(layout.padded());
  std::vector<float> norms(layout.blocks());
  std::vector<std::uint8_t> codes(layout.padded() / 2);
  std::vector<std::uint8_t> sums(layout.padded(), 0);
  const std::vector<float> gradient = normal_floats(layout.coordinates());  // the same on all workers
  for (std::uint32_t worker = 0; worker < kWorkers; ++worker) {
    block_norms({gradient.data(), FloatFormat::kFp32}, nullptr, layout, norms.data());
    rotate({gradient.data(), FloatFormat::kFp32}, nullptr, layout, kKey, rotated.data());
    quantize(rotated.data(), norms.data(), layout, table, {3.0F, kKey, {1 + worker, 0}, false}, codes.data());
    lookup_sum(codes.data(), layout.padded(), table, Accumulate::kAdd, sums.data());
  }
  const std::vector<std::uint8_t> contributions(layout.padded() / 64, kWorkers);
  std::vector<float> average(layout.coordinates());
  decode({sums.data(), 8, contributions.data(), 64, table.granularity(), 3.0F, norms.data()}, layout, kKey,
         {average.data(), FloatFormat::kFp32});
  double error = 0;
  double energy = 0;
  for (std::size_t j = 0; j < gradient.size(); ++j) {
    error += std::pow(average[j] - gradient[j], 2);
    energy += std::pow(gradient[j], 2);
  }
  // Uniform steps of 2 * 3 / 15: at most step^2 / 4 per worker, averaged over four independent roundings.
  EXPECT_LT(error / energy, 0.4 * 0.4 / 4 / kWorkers);
  EXPECT_GT(error / energy, 0.0);
}

}  // namespace
}  // namespace thc::testing
