#include "thc/rotation.h"

#include <pybind11/stl.h>

#include <optional>

#include "python/arrays.h"
#include "python/register.h"
#include "thc/threaded_kernels.h"

namespace thc::python {
namespace {

using OptionalArray = std::optional<py::array>;

const float* residual_input(const OptionalArray& residual, std::size_t size) {
  return residual ? input<float>(*residual, "residual", size) : nullptr;
}

void block_norms_array(const py::array& gradient, const OptionalArray& residual, py::array norms,
                       std::size_t rotation_block, ThreadPool* pool) {
  const BlockLayout layout(static_cast<std::size_t>(gradient.size()), rotation_block);
  const ConstFloats in = float_input(gradient, "gradient", layout.coordinates());
  const float* carried = residual_input(residual, layout.coordinates());
  float* out = output<float>(norms, "norms", layout.blocks());
  const py::gil_scoped_release unlocked;
  threaded::block_norms(pool, in, carried, layout, out);
}

void rotate_array(const py::array& gradient, const OptionalArray& residual, py::array rotated, py::array norms,
                  std::size_t rotation_block, std::uint64_t seed, std::uint32_t tensor, std::uint32_t round) {
  const BlockLayout layout(static_cast<std::size_t>(gradient.size()), rotation_block);
  const ConstFloats in = float_input(gradient, "gradient", layout.coordinates());
  const float* carried = residual_input(residual, layout.coordinates());
  float* out = output<float>(rotated, "rotated", layout.padded());
  float* out_norms = output<float>(norms, "norms", layout.blocks());
  const py::gil_scoped_release unlocked;
  rotate(in, carried, layout, {seed, tensor, round}, out, out_norms);
}

void inverse_rotate_array(py::array rotated, py::array out, std::size_t rotation_block, std::uint64_t seed,
                          std::uint32_t tensor, std::uint32_t round) {
  const BlockLayout layout(static_cast<std::size_t>(out.size()), rotation_block);
  float* in = output<float>(rotated, "rotated", layout.padded());
  float* average = output<float>(out, "out", layout.coordinates());
  const py::gil_scoped_release unlocked;
  inverse_rotate(in, layout, {seed, tensor, round}, average);
}

}  // namespace

void register_rotation(py::module_& module) {
  module.def("block_norms", &block_norms_array, py::arg("gradient"), py::arg("residual").none(true), py::arg("norms"),
             py::kw_only(), py::arg("rotation_block"), py::arg("pool") = py::none());
  module.def("rotate", &rotate_array, py::arg("gradient"), py::arg("residual").none(true), py::arg("rotated"),
             py::arg("norms"), py::kw_only(), py::arg("rotation_block"), py::arg("seed"), py::arg("tensor"),
             py::arg("round"));
  module.def("inverse_rotate", &inverse_rotate_array, py::arg("rotated"), py::arg("out"), py::kw_only(),
             py::arg("rotation_block"), py::arg("seed"), py::arg("tensor"), py::arg("round"));
}

}  // namespace thc::python
