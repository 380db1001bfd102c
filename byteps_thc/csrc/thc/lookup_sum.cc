#include "thc/lookup_sum.h"

#include "thc/lookup_sum_naive.h"

namespace thc {

void lookup_sum(const std::uint8_t* codes, std::size_t count, const LookupTable& table, Accumulate mode,
                std::uint8_t* aggregate) noexcept {
  naive::lookup_sum(codes, count, table, mode, aggregate);
}

void lookup_sum(const std::uint8_t* codes, std::size_t count, const LookupTable& table, Accumulate mode,
                std::uint16_t* aggregate) noexcept {
  naive::lookup_sum(codes, count, table, mode, aggregate);
}

void max_norms_be(const std::uint8_t* norms_be, std::size_t count, Accumulate mode, std::uint8_t* maximum_be) noexcept {
  naive::max_norms_be(norms_be, count, mode, maximum_be);
}

}  // namespace thc
