// Kernels of an aggregator: look codes up and add, or take the maximum of norms. No decompression.
#pragma once

#include <cstddef>
#include <cstdint>

#include "thc/lookup_table.h"

namespace thc {

enum class Accumulate : std::uint8_t { kWrite, kAdd };

/// aggregate[i] (= or +=) table[code i], i < count. Any alignment. The job's set-up guarantees that sums fit.
void lookup_sum(const std::uint8_t* codes, std::size_t count, const LookupTable& table, Accumulate mode,
                std::uint8_t* aggregate) noexcept;
void lookup_sum(const std::uint8_t* codes, std::size_t count, const LookupTable& table, Accumulate mode,
                std::uint16_t* aggregate) noexcept;

/// maximum[i] (= or max=) norms[i] as unsigned integers, both in network byte order: this is the order of non-negative
/// floats, with NaN above infinity, so a non-finite norm reaches every worker.
void max_norms_be(const std::uint8_t* norms_be, std::size_t count, Accumulate mode, std::uint8_t* maximum_be) noexcept;

/// Whether any norm has its sign bit set, which no norm has: as an integer it would be above all others.
bool has_negative_be(const std::uint8_t* norms_be, std::size_t count) noexcept;

}  // namespace thc
