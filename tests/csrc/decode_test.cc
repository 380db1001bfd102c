#include "thc/decode.h"

#include <bit>
#include <cmath>

#include "csrc/kernel_fixture.h"

namespace thc::testing {
namespace {

class Decode : public EveryInstructionSet {};
THC_INSTANTIATE_EVERY_INSTRUCTION_SET(Decode);

enum class Loss { kNone, kSome };

/// Contributions of `chunks` chunks: three everywhere, or all of 0..4.
std::vector<std::uint16_t> chunk_contributions(std::size_t chunks, Loss loss) {
  std::vector<std::uint16_t> contributions(chunks, 3);
  for (std::size_t i = 0; loss == Loss::kSome && i < chunks; ++i) contributions[i] = static_cast<std::uint16_t>(i % 5);
  return contributions;
}

std::vector<float> random_norms(std::size_t count) {
  std::vector<float> norms = normal_floats(count);
  for (float& norm : norms) norm = std::fabs(norm);
  return norms;
}

/// An aggregate with random sums over the whole range of their type.
struct RandomAggregate {
  RandomAggregate(const BlockLayout& layout, unsigned value_bits, std::size_t codes_per_chunk, std::size_t misalignment,
                  Loss loss)
      : sums(random_bytes(layout.padded() * value_bits / 8), misalignment),
        contributions(chunk_contributions((layout.padded() + codes_per_chunk - 1) / codes_per_chunk, loss)),
        max_norms(random_norms(layout.blocks()), misalignment) {
    view = {sums.data(), value_bits, contributions.data(), codes_per_chunk, 30, 2.15F, max_norms.data()};
  }
  Misaligned<std::uint8_t> sums;
  std::vector<std::uint16_t> contributions;
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
              decode(nullptr, aggregate.view, layout, kKey, Floats{out.data(), format});
              return out.values();
            });
          }
        }
      }
    }
  }
}

/// All sums 0 or 255, in the pattern of one row of the Hadamard matrix: no transform is larger.
TEST_P(Decode, LargestSumsDoNotOverflow) {
  use_instruction_set(GetParam());
  constexpr std::size_t kSize = 8192;
  const BlockLayout layout(kSize, kSize);
  const std::vector<std::uint16_t> contributions(kSize / 1024, 1);
  const float norm = 1.0F;
  for (const std::size_t row : {std::size_t{0}, std::size_t{1}, std::size_t{64}, std::size_t{4096}, kSize - 1}) {
    for (const bool inverted : {false, true}) {
      std::vector<std::uint8_t> sums(kSize);
      for (std::size_t j = 0; j < kSize; ++j) {
        const bool minus = std::popcount(row & j) % 2 != 0;
        sums[j] = minus != inverted ? 0 : 255;
      }
      std::vector<float> out(kSize);
      decode(nullptr, {sums.data(), 8, contributions.data(), 1024, 255, 0.5F, &norm}, layout, kKey,
             {out.data(), FloatFormat::kFp32});
      // Sums of 0 and 255 stand for -1/2 and 1/2.
      for (std::size_t k = 0; k < kSize; ++k) {
        ASSERT_NEAR(std::fabs(out[k]), k == row ? 0.5F : 0.0F, 1e-6F) << "row " << row << ", coordinate " << k;
      }
    }
  }
}

}  // namespace
}  // namespace thc::testing
