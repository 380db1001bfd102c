// Scalar twins of lookup_sum.h: the reference that the vector kernels are tested against.
#pragma once

#include <cstddef>
#include <cstdint>

#include "thc/lookup_sum.h"

namespace thc::naive {

void lookup_sum(const std::uint8_t* codes, std::size_t count, const LookupTable& table, Accumulate mode,
                std::uint8_t* aggregate) noexcept;
void lookup_sum(const std::uint8_t* codes, std::size_t count, const LookupTable& table, Accumulate mode,
                std::uint16_t* aggregate) noexcept;
void max_norms_be(const std::uint8_t* norms_be, std::size_t count, Accumulate mode, std::uint8_t* maximum_be) noexcept;
void max_norms(const float* norms, std::size_t count, Accumulate mode, float* maximum) noexcept;

}  // namespace thc::naive
