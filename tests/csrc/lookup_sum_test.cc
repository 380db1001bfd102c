#include "thc/lookup_sum.h"

#include <limits>

#include "csrc/kernel_fixture.h"
#include "thc/bit_stream.h"

namespace thc::testing {
namespace {

class LookupSum : public EveryInstructionSet {};
THC_INSTANTIATE_EVERY_INSTRUCTION_SET(LookupSum);

/// Writes one set of codes, adds another, and checks against a sum taken here.
template <typename Sum>
void check_sums(const LookupTable& table, std::size_t count, std::size_t misalignment) {
  const std::vector<std::uint8_t> first = random_bytes(code_bytes(count, table.bits()), 5);
  const std::vector<std::uint8_t> second = random_bytes(code_bytes(count, table.bits()), 6);
  Misaligned<std::uint8_t> codes(first, misalignment);
  Misaligned<std::uint8_t> more_codes(second, misalignment);
  Misaligned<Sum> aggregate(count, misalignment);
  lookup_sum(codes.data(), count, table, Accumulate::kWrite, aggregate.data());
  lookup_sum(more_codes.data(), count, table, Accumulate::kAdd, aggregate.data());
  const std::vector<Sum> sums = aggregate.values();
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_EQ(sums[i], static_cast<Sum>(table.values()[read_code(first.data(), i, table.bits())] +
                                        table.values()[read_code(second.data(), i, table.bits())]))
        << "coordinate " << i;
  }
}

TEST_P(LookupSum, AddsTableValues) {
  use_instruction_set(GetParam());
  for (const unsigned bits : {1U, 2U, 3U, 4U, 5U, 6U, 8U}) {
    for (const std::size_t count : kSizes) {
      for (const std::size_t misalignment : {0UL, 1UL, 7UL}) {
        SCOPED_TRACE(std::to_string(bits) + " bits, count " + std::to_string(count));
        check_sums<std::uint8_t>(bits == 8 ? identity_table(bits) : uneven_table(bits), count, misalignment);
        check_sums<std::uint16_t>(uneven_table(bits, 60), count, misalignment);
      }
    }
  }
}

TEST_P(LookupSum, AddsAMillionTableValues) {
  use_instruction_set(GetParam());
  for (const unsigned bits : {4U, 5U, 6U}) {
    check_sums<std::uint8_t>(uneven_table(bits), (std::size_t{1} << 20) + 77, 3);
    check_sums<std::uint16_t>(uneven_table(bits, 60), (std::size_t{1} << 20) + 77, 3);
  }
}

std::vector<std::uint8_t> in_network_order(const std::vector<float>& norms) {
  std::vector<std::uint8_t> bytes;
  for (const std::uint32_t bits : bits_of(norms)) {
    for (const unsigned shift : {24U, 16U, 8U, 0U}) bytes.push_back(static_cast<std::uint8_t>(bits >> shift));
  }
  return bytes;
}

TEST(MaxNorms, OrdersLikeFloatsAndNaNWins) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> first = {0.0F, 1.0F, 2.0F, kInfinity, nan, 1e-40F};
  const std::vector<float> second = {0.5F, 3.0F, 1.0F, nan, 7.0F, 0.0F};
  std::vector<std::uint8_t> maximum(4 * first.size());
  max_norms_be(in_network_order(first).data(), first.size(), Accumulate::kWrite, maximum.data());
  EXPECT_EQ(maximum, in_network_order(first));
  max_norms_be(in_network_order(second).data(), second.size(), Accumulate::kAdd, maximum.data());
  EXPECT_EQ(maximum, in_network_order({0.5F, 3.0F, 2.0F, nan, nan, 1e-40F}));
}

TEST(MaxNorms, NetworkByteOrder) {
  const std::uint8_t low_last_byte[] = {0x00, 0x00, 0x01, 0x00};
  const std::uint8_t high_last_byte[] = {0x00, 0x00, 0x00, 0xff};
  std::uint8_t maximum[4] = {};
  max_norms_be(high_last_byte, 1, Accumulate::kWrite, maximum);
  max_norms_be(low_last_byte, 1, Accumulate::kAdd, maximum);
  EXPECT_EQ(std::memcmp(maximum, low_last_byte, 4), 0);
}

}  // namespace
}  // namespace thc::testing
