// Scalar lookup_sum: for the codes that vectors leave over.
#pragma once

#include <cstddef>
#include <cstdint>

#include "thc/lookup_sum.h"

namespace thc::naive {

void lookup_sum(const std::uint8_t* codes, std::size_t count, const LookupTable& table, Accumulate mode,
                std::uint8_t* aggregate) noexcept;
void lookup_sum(const std::uint8_t* codes, std::size_t count, const LookupTable& table, Accumulate mode,
                std::uint16_t* aggregate) noexcept;

}  // namespace thc::naive
