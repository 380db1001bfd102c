// Lookup tables and code widths as arguments.
#pragma once

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "python/arrays.h"
#include "thc/errors.h"
#include "thc/known_error.h"
#include "thc/lookup_table.h"

namespace thc::python {

/// Width of a packed field: codes, or sums of table values on their way back. `most`: that of the unpacked numbers.
inline unsigned checked_width(unsigned bits, std::size_t most = 16) {
  if (bits < 1 || bits > most) {
    throw ConfigurationError("bits must be in 1 .. " + std::to_string(most) + ", got " + std::to_string(bits));
  }
  return bits;
}

/// float32[2, 16] as Python makes it, or nothing.
inline std::optional<KnownError> known_input(const std::optional<py::array>& known) {
  if (!known) return std::nullopt;
  KnownError copy{};
  const auto* entries = input<float>(*known, "known", 2 * KnownError::kPieces);
  std::memcpy(copy.offset.data(), entries, sizeof(copy.offset));
  std::memcpy(copy.slope.data(), entries + KnownError::kPieces, sizeof(copy.slope));
  return copy;
}

inline LookupTable table_input(const py::array& values, unsigned bits) {
  require_code_bits(bits);
  const std::size_t size = std::size_t{1} << bits;
  const auto* data = input<std::uint16_t>(values, "values", size);
  std::vector<std::uint16_t> aligned(size);
  std::memcpy(aligned.data(), data, size * sizeof(std::uint16_t));
  return LookupTable(bits, aligned);
}

}  // namespace thc::python
