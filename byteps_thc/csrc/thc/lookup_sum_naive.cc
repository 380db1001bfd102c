#include "thc/lookup_sum_naive.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "thc/bit_stream.h"
#include "thc/byte_order.h"

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

/// Maximum of 32-bit words in the given byte order, which are not aligned.
template <std::endian kOrder>
void max_of_words(const void* words, std::size_t count, Accumulate mode, void* maximum) noexcept {
  const auto load = [](const void* from, std::size_t i) {
    std::uint32_t word = 0;
    std::memcpy(&word, static_cast<const std::uint8_t*>(from) + 4 * i, 4);
    return kOrder == std::endian::native ? word : byte_swap(word);
  };
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t word = load(words, i);
    if (mode == Accumulate::kAdd) {
      word = std::max(word, load(maximum, i));
    }
    word = kOrder == std::endian::native ? word : byte_swap(word);
    std::memcpy(static_cast<std::uint8_t*>(maximum) + 4 * i, &word, 4);
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
  max_of_words<std::endian::big>(norms_be, count, mode, maximum_be);
}

void max_norms(const float* norms, std::size_t count, Accumulate mode, float* maximum) noexcept {
  max_of_words<std::endian::native>(norms, count, mode, maximum);
}

}  // namespace thc::naive
