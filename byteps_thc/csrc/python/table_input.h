// Lookup tables as arguments.
#pragma once

#include <cstring>
#include <vector>

#include "python/arrays.h"
#include "thc/lookup_table.h"

namespace thc::python {

inline LookupTable table_input(const py::array& values, unsigned bits) {
  require_code_bits(bits);
  const std::size_t size = std::size_t{1} << bits;
  const auto* data = input<std::uint16_t>(values, "values", size);
  std::vector<std::uint16_t> aligned(size);
  std::memcpy(aligned.data(), data, size * sizeof(std::uint16_t));
  return LookupTable(bits, aligned);
}

}  // namespace thc::python
