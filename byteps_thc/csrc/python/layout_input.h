// Rotation blocks from NumPy arrays.
#pragma once

#include <optional>
#include <vector>

#include "python/arrays.h"
#include "thc/block_layout.h"

namespace thc::python {

/// The rotation blocks of a partition. ends: see BlockLayout, uint64; None: no ends.
inline BlockLayout layout_input(std::size_t coordinates, std::size_t rotation_block,
                                const std::optional<py::array>& ends) {
  if (!ends) {
    return {coordinates, rotation_block};
  }
  const auto count = static_cast<std::size_t>(ends->size());
  const auto* first = input<std::uint64_t>(*ends, "ends", count);
  const std::vector<std::size_t> copied(first, first + count);
  return {coordinates, rotation_block, copied};
}

}  // namespace thc::python
