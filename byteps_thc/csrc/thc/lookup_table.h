// The lookup table T: codes to table values (paper, section 5.2).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "thc/wire_layout.h"

namespace thc {

/// Throws ConfigurationError unless codes may have that many bits.
void require_code_bits(unsigned bits);

/// An increasing table 0 = T[0] < ... < T[2^bits - 1] = granularity. If the granularity is below 2^bits - 1, T[z] =
/// min(z, granularity), and quantization uses codes up to granularity only.
class LookupTable {
 public:
  /// Throws ConfigurationError unless codes may have `bits` bits and such a table may hold 2^bits values.
  LookupTable(unsigned bits, std::span<const std::uint16_t> values);

  unsigned bits() const noexcept { return bits_; }
  /// g, the largest table value.
  std::uint16_t granularity() const noexcept { return values_[size() - 1]; }
  std::size_t size() const noexcept { return std::size_t{1} << bits_; }
  /// Number of different values: codes 0 .. levels() - 1 are used.
  std::size_t levels() const noexcept { return std::min(size(), std::size_t{granularity()} + 1); }
  std::span<const std::uint16_t> values() const noexcept { return {values_.data(), size()}; }
  /// FNV-1a 64 of (bits u8, granularity u16 be, values u16 be each); both ends compare it in HELLO.
  std::uint64_t hash() const noexcept;
  /// 8 or 16, the fewest bits that hold granularity * workers; throws ConfigurationError if 16 do not.
  unsigned value_bits_for(unsigned workers) const;

 private:
  unsigned bits_;
  std::array<std::uint16_t, std::size_t{1} << wire::kMaxCodeBits> values_{};
};

}  // namespace thc
