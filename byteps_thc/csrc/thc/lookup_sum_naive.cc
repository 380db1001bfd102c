#include "thc/lookup_sum_naive.h"

#include <cstring>

#include "thc/bit_stream.h"

namespace thc::naive {
namespace {

template <typename Sum>
void sum_table_values(const std::uint8_t* codes, std::size_t count, const LookupTable& table, Accumulate mode,
                      Sum* aggregate) noexcept {
  auto* bytes = reinterpret_cast<std::uint8_t*>(aggregate);  // 16-bit sums may be unaligned
  for (std::size_t i = 0; i < count; ++i) {
    Sum sum = 0;
    if (mode == Accumulate::kAdd) {
      std::memcpy(&sum, bytes + i * sizeof(Sum), sizeof(Sum));
    }
    sum = static_cast<Sum>(sum + table.values()[read_code(codes, i, table.bits())]);
    std::memcpy(bytes + i * sizeof(Sum), &sum, sizeof(Sum));
  }
}

}  // namespace

void lookup_sum(const std::uint8_t* codes, std::size_t count, const LookupTable& table, Accumulate mode,
                std::uint8_t* aggregate) noexcept {
  sum_table_values(codes, count, table, mode, aggregate);
}

void lookup_sum(const std::uint8_t* codes, std::size_t count, const LookupTable& table, Accumulate mode,
                std::uint16_t* aggregate) noexcept {
  sum_table_values(codes, count, table, mode, aggregate);
}

}  // namespace thc::naive
