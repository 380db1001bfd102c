#include "thc/philox.h"

#include <gtest/gtest.h>

namespace thc {
namespace {

// Known answers of Random123 (kat_vectors, philox4x32).
TEST(Philox, KnownAnswersOfTenRounds) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}, 10), (PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}, 10),
            (PhiloxWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}, 10),
            (PhiloxWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, KnownAnswersOfSevenRounds) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}, 7), (PhiloxWords{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}, 7),
            (PhiloxWords{0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}, 7),
            (PhiloxWords{0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a}));
}

TEST(Philox, RoundingBitsDifferByDomainAndSignsAreBalanced) {
  const RandomKey key{11, 3, 5};
  int different = 0;
  int negative = 0;
  for (std::size_t j = 0; j < 4096; ++j) {
    different += rounding_bits(key, {1, 0}, j) != rounding_bits(key, {2, 0}, j) ? 1 : 0;
    negative += sign_is_negative(key, j) ? 1 : 0;
  }
  EXPECT_GT(different, 4080);
  EXPECT_NEAR(negative, 2048, 5 * 32);  // five standard deviations
}

TEST(Philox, APhaseIsAddedModulo16Bits) {
  const RandomKey key{11, 3, 5};
  for (std::size_t j = 0; j < 256; ++j) {
    const std::uint32_t without = rounding_bits(key, {1, 0}, j);
    EXPECT_EQ(rounding_bits(key, {1, 0xc001}, j), (without + 0xc001) % 0x10000);
  }
}

}  // namespace
}  // namespace thc
