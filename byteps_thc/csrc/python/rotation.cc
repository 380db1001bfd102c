#include "thc/rotation.h"

#include <pybind11/stl.h>

#include <optional>

#include "python/layout_input.h"
#include "python/register.h"
#include "thc/threaded_kernels.h"

namespace thc::python {
namespace {

using OptionalArray = std::optional<py::array>;

void block_norms_array(const py::array& gradient, const OptionalArray& residual, py::array norms,
                       std::size_t rotation_block, const OptionalArray& ends, ThreadPool* pool) {
  const BlockLayout layout = layout_input(static_cast<std::size_t>(gradient.size()), rotation_block, ends);
  const ConstFloats in = float_input(gradient, "gradient", layout.coordinates());
  const ConstFloats carried = residual ? residual_input(*residual, layout.coordinates()) : ConstFloats{};
  float* out = output<float>(norms, "norms", layout.blocks());
  const py::gil_scoped_release unlocked;
  threaded::block_norms(pool, in, carried, layout, out);
}

}  // namespace

void register_rotation(py::module_& module) {
  module.def("block_norms", &block_norms_array, py::arg("gradient"), py::arg("residual").none(true), py::arg("norms"),
             py::kw_only(), py::arg("rotation_block"), py::arg("ends").none(true) = py::none(),
             py::arg("pool") = py::none());
}

}  // namespace thc::python
