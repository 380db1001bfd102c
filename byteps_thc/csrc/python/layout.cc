#include <pybind11/stl.h>

#include <cstdint>

#include "python/layout_input.h"
#include "python/register.h"
#include "thc/bit_stream.h"
#include "thc/errors.h"

namespace thc::python {

namespace py = pybind11;

void register_layout(py::module_& module) {
  module.def(
      "padded_size",
      [](std::size_t coordinates, std::size_t rotation_block) {
        return BlockLayout(coordinates, rotation_block).padded();
      },
      py::arg("coordinates"), py::arg("rotation_block"));
  module.def(
      "block_sizes",
      [](std::size_t coordinates, std::size_t rotation_block, const std::optional<py::array>& ends) {
        const BlockLayout layout = layout_input(coordinates, rotation_block, ends);
        py::array_t<std::int64_t> sizes(static_cast<py::ssize_t>(layout.blocks()));
        for (std::size_t i = 0; i < layout.blocks(); ++i) {
          sizes.mutable_at(static_cast<py::ssize_t>(i)) = static_cast<std::int64_t>(layout.size(i));
        }
        return sizes;
      },
      py::arg("coordinates"), py::arg("rotation_block"), py::arg("ends").none(true) = py::none());
}

}  // namespace thc::python
