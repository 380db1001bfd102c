#include "thc/lookup_sum.h"

#include "csrc/kernel_fixture.h"
#include "thc/pack.h"

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

}  // namespace
}  // namespace thc::testing
