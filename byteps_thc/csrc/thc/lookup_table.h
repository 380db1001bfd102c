// The lookup table T: codes to table values (paper, section 5.2).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "thc/wire_layout.h"

namespace thc {

/// Throws ConfigurationError unless codes may have that many bits.
void require_code_bits(unsigned bits);

/// An injective, increasing table 0 = T[0] < ... < T[2^bits - 1] = granularity.
class LookupTable {
 public:
  /// Throws ConfigurationError unless codes may have `bits` bits, there are 2^bits values, they increase strictly and
  /// values[0] is 0.
  LookupTable(unsigned bits, std::span<const std::uint16_t> values);

  unsigned bits() const noexcept { return bits_; }
  /// g, the largest table value.
  std::uint16_t granularity() const noexcept { return values_[size() - 1]; }
  std::size_t size() const noexcept { return std::size_t{1} << bits_; }
  std::span<const std::uint16_t> values() const noexcept { return {values_.data(), size()}; }
  /// FNV-1a 64 of (bits u8, granularity u16 be, values u16 be each); both ends compare it in HELLO.
  std::uint64_t hash() const noexcept;
  /// 8 or 16: the fewest bits of a coordinate of the aggregate that hold granularity * workers; throws
  /// ConfigurationError when neither do.
  unsigned value_bits_for(unsigned workers) const;

 private:
  unsigned bits_;
  std::array<std::uint16_t, std::size_t{1} << wire::kMaxCodeBits> values_{};
};

}  // namespace thc
