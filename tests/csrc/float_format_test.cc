#include "thc/float_format.h"

#include <cmath>
#include <limits>

#include "csrc/kernel_fixture.h"

namespace thc::testing {
namespace {

class FloatFormats : public EveryInstructionSet {};
THC_INSTANTIATE_EVERY_INSTRUCTION_SET(FloatFormats);

TEST_P(FloatFormats, EveryHalfPrecisionValueSurvives) {
  use_instruction_set(GetParam());
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  for (const FloatFormat format : {FloatFormat::kFp16, FloatFormat::kBf16}) {
    std::vector<float> wide(all.size());
    std::vector<std::uint16_t> back(all.size());
    to_fp32({all.data(), format}, all.size(), wide.data());
    from_fp32(wide.data(), wide.size(), {back.data(), format});
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!std::isnan(wide[i])) {
        ASSERT_EQ(back[i], all[i]);
        ASSERT_EQ(wide[i], format == FloatFormat::kFp16 ? naive::fp16_to_fp32(all[i]) : naive::bf16_to_fp32(all[i]));
      }
    }
    EXPECT_TRUE(std::isnan(wide[0x7fff]));
  }
}

TEST_P(FloatFormats, RoundingEqualsNaive) {
  use_instruction_set(GetParam());
  std::vector<float> values;
  for (std::uint32_t upper = 0; upper < 65536; ++upper) {
    for (const std::uint32_t lower : {0U, 1U, 0x7fffU, 0x8000U, 0x8001U, 0xefffU, 0xffffU}) {
      const float value = std::bit_cast<float>((upper << 16) | lower);
      values.push_back(std::isnan(value) ? 0.0F : value);  // of a NaN the sign may differ
    }
  }
  for (const FloatFormat format : {FloatFormat::kFp16, FloatFormat::kBf16}) {
    std::vector<std::uint16_t> expected(values.size());
    std::vector<std::uint16_t> out(values.size());
    naive::from_fp32(values.data(), values.size(), {expected.data(), format});
    from_fp32(values.data(), values.size(), {out.data(), format});
    EXPECT_EQ(out, expected);
  }
}

TEST_P(FloatFormats, WhatIsTooLargeForFp16StaysFiniteUnlessItIsInfinite) {
  use_instruction_set(GetParam());
  constexpr float kLargest = std::numeric_limits<float>::max(), kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values{65504, 65519, 65520, 1e9F, kLargest, kInfinity, -65520, -kLargest, -kInfinity};
  const std::vector<std::uint16_t> wanted{0x7bff, 0x7bff, 0x7bff, 0x7bff, 0x7bff, 0x7c00, 0xfbff, 0xfbff, 0xfc00};
  std::vector<float> repeated;  // in vectors, and left over by them
  std::vector<std::uint16_t> all_wanted;
  for (int i = 0; i < 5; ++i) {
    repeated.insert(repeated.end(), values.begin(), values.end());
    all_wanted.insert(all_wanted.end(), wanted.begin(), wanted.end());
  }
  std::vector<std::uint16_t> out(repeated.size());
  from_fp32(repeated.data(), repeated.size(), {out.data(), FloatFormat::kFp16});
  EXPECT_EQ(out, all_wanted);
  std::vector<float> nans(35, std::numeric_limits<float>::quiet_NaN());
  from_fp32(nans.data(), nans.size(), {out.data(), FloatFormat::kFp16});
  for (std::size_t i = 0; i < nans.size(); ++i) EXPECT_TRUE(std::isnan(naive::fp16_to_fp32(out[i])));
}

TEST(FloatFormat, KnownRoundings) {
  EXPECT_EQ(naive::fp32_to_fp16(1.0F), 0x3c00);
  EXPECT_EQ(naive::fp32_to_fp16(65519.0F), 0x7bff);
  EXPECT_EQ(naive::fp32_to_fp16(65520.0F), 0x7bff);  // finite numbers stay finite
  EXPECT_EQ(naive::fp32_to_fp16(-std::numeric_limits<float>::max()), 0xfbff);
  EXPECT_EQ(naive::fp32_to_fp16(std::numeric_limits<float>::infinity()), 0x7c00);
  EXPECT_EQ(naive::fp32_to_fp16(-std::numeric_limits<float>::infinity()), 0xfc00);
  EXPECT_EQ(naive::fp32_to_fp16(std::numeric_limits<float>::quiet_NaN()), 0x7e00);
  EXPECT_EQ(naive::fp32_to_fp16(0x1p-25F), 0x0000);  // halfway to the smallest value: to even
  EXPECT_EQ(naive::fp32_to_fp16(-0x1.8p-25F), 0x8001);
  EXPECT_EQ(naive::fp32_to_bf16(1.0F + 0x1p-8F), 0x3f80);
  EXPECT_EQ(naive::fp32_to_bf16(1.0F + 0x1.8p-8F), 0x3f81);
}

}  // namespace
}  // namespace thc::testing
