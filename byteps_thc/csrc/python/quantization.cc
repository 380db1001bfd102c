#include "thc/quantization.h"

#include <pybind11/stl.h>

#include <cmath>
#include <optional>

#include "python/layout_input.h"
#include "python/register.h"
#include "python/table_input.h"
#include "thc/bit_stream.h"
#include "thc/errors.h"
#include "thc/threaded_kernels.h"

namespace thc::python {
namespace {

void check_threshold(float threshold) {
  if (!(threshold > 0.0F) || !std::isfinite(threshold)) {
    throw ConfigurationError("threshold must be positive and finite, got " + std::to_string(threshold));
  }
}

std::size_t encode_array(const py::array& gradient, std::optional<py::array> residual, const py::array& max_norms,
                         py::array codes, std::size_t rotation_block, const py::array& values, unsigned bits,
                         float threshold, std::uint64_t seed, std::uint32_t tensor, std::uint32_t round,
                         std::uint32_t domain, std::uint16_t phase, bool keep_error,
                         const std::optional<py::array>& ends, ThreadPool* pool) {
  const BlockLayout layout = layout_input(static_cast<std::size_t>(gradient.size()), rotation_block, ends);
  const LookupTable table = table_input(values, bits);
  check_threshold(threshold);
  if (keep_error && !residual) {
    throw InputError("residual: expected an array, because the error is to be kept, got None");
  }
  const QuantizeOptions options{threshold, {seed, tensor, round}, {domain, phase}, keep_error};
  const ConstFloats in = float_input(gradient, "gradient", layout.coordinates());
  const Floats carried = residual ? residual_output(*residual, layout.coordinates()) : Floats{};
  const float* norms = input<float>(max_norms, "max_norms", layout.blocks());
  auto* packed = output<std::uint8_t>(codes, "codes", code_bytes(layout.padded(), bits));
  const py::gil_scoped_release unlocked;
  return threaded::encode(pool, in, carried, norms, layout, table, options, packed);
}

}  // namespace

void register_quantization(py::module_& module) {
  module.def(
      "code_bytes", [](std::size_t count, unsigned bits) { return code_bytes(count, checked_width(bits)); },
      py::arg("count"), py::arg("bits"));
  module.def("encode", &encode_array, py::arg("gradient"), py::arg("residual").none(true), py::arg("max_norms"),
             py::arg("codes"), py::kw_only(), py::arg("rotation_block"), py::arg("values"), py::arg("bits"),
             py::arg("threshold"), py::arg("seed"), py::arg("tensor"), py::arg("round"), py::arg("domain"),
             py::arg("phase"), py::arg("keep_error"), py::arg("ends").none(true) = py::none(),
             py::arg("pool") = py::none());
}

}  // namespace thc::python
