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

/// An increasing table 0 = T[0] < ... < T[2^bits - 1] = granularity. A granularity below 2^bits - 1 leaves codes over:
/// T[z] = min(z, granularity), and quantization uses the codes up to granularity alone.
class LookupTable {
 public:
  /// Throws ConfigurationError unless codes may have `bits` bits, and there are 2^bits values of such a table.
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
  /// 8 or 16: the fewest bits of a coordinate of the aggregate that hold granularity * workers; throws
  /// ConfigurationError when neither do.
  unsigned value_bits_for(unsigned workers) const;

 private:
  unsigned bits_;
  std::array<std::uint16_t, std::size_t{1} << wire::kMaxCodeBits> values_{};
};

}  // namespace thc
