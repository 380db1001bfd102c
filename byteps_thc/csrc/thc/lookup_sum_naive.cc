#include "thc/lookup_sum_naive.h"

#include <algorithm>
#include <cstring>

#include "thc/bit_stream.h"
#include "thc/byte_order.h"

namespace thc::naive {
namespace {

template <typename Lane>
void sum_table_values(const std::uint8_t* codes, std::size_t count, const LookupTable& table, Accumulate mode,
                      Lane* aggregate) noexcept {
  auto* bytes = reinterpret_cast<std::uint8_t*>(aggregate);  // 16-bit lanes may be unaligned
  for (std::size_t i = 0; i < count; ++i) {
    Lane sum = 0;
    if (mode == Accumulate::kAdd) {
      std::memcpy(&sum, bytes + i * sizeof(Lane), sizeof(Lane));
    }
    sum = static_cast<Lane>(sum + table.values()[read_code(codes, i, table.bits())]);
    std::memcpy(bytes + i * sizeof(Lane), &sum, sizeof(Lane));
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

void max_norms_be(const std::uint8_t* norms_be, std::size_t count, Accumulate mode, std::uint8_t* maximum_be) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t norm = 0;
    std::memcpy(&norm, norms_be + 4 * i, 4);
    if (mode == Accumulate::kAdd) {
      std::uint32_t maximum = 0;
      std::memcpy(&maximum, maximum_be + 4 * i, 4);
      norm = to_big_endian(std::max(to_big_endian(norm), to_big_endian(maximum)));
    }
    std::memcpy(maximum_be + 4 * i, &norm, 4);
  }
}

}  // namespace thc::naive
