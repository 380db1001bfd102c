#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "csrc/python/register_test.h"
#include "csrc/use_instruction_set.h"
#include "python/layout_input.h"
#include "python/table_input.h"
#include "thc/lookup_sum.h"
#include "thc/pack.h"
#include "thc/quantization.h"
#include "thc/rotation.h"

namespace thc::python {
namespace {

void rotate_array(const py::array& gradient, const std::optional<py::array>& residual, py::array rotated,
                  std::size_t rotation_block, std::uint64_t seed, std::uint32_t tensor, std::uint32_t round,
                  const std::optional<py::array>& ends) {
  const BlockLayout layout = layout_input(static_cast<std::size_t>(gradient.size()), rotation_block, ends);
  const ConstFloats in = float_input(gradient, "gradient", layout.coordinates());
  const float* carried = residual ? input<float>(*residual, "residual", layout.coordinates()) : nullptr;
  float* out = output<float>(rotated, "rotated", layout.padded());
  rotate(in, carried, layout, {seed, tensor, round}, out);
}

std::size_t quantize_array(py::array rotated, const py::array& max_norms, py::array codes, std::size_t coordinates,
                           std::size_t rotation_block, const py::array& values, unsigned bits, float threshold,
                           std::uint64_t seed, std::uint32_t tensor, std::uint32_t round, std::uint32_t domain,
                           std::uint16_t phase, bool keep_error, const std::optional<py::array>& ends) {
  const BlockLayout layout = layout_input(coordinates, rotation_block, ends);
  const LookupTable table = table_input(values, bits);
  float* in = output<float>(rotated, "rotated", layout.padded());
  const float* norms = input<float>(max_norms, "max_norms", layout.blocks());
  auto* packed = output<std::uint8_t>(codes, "codes", code_bytes(layout.padded(), bits));
  const QuantizeOptions options{threshold, {seed, tensor, round}, {domain, phase}, keep_error};
  return quantize(in, norms, layout, table, options, packed);
}

void inverse_rotate_array(py::array rotated, py::array out, std::size_t rotation_block, std::uint64_t seed,
                          std::uint32_t tensor, std::uint32_t round, const std::optional<py::array>& ends) {
  const BlockLayout layout = layout_input(static_cast<std::size_t>(out.size()), rotation_block, ends);
  float* in = output<float>(rotated, "rotated", layout.padded());
  inverse_rotate(in, layout, {seed, tensor, round}, output<float>(out, "out", layout.coordinates()));
}

void max_norms_be_array(const py::array& norms, py::array maximum, bool add) {
  const auto bytes = static_cast<std::size_t>(norms.size());
  const auto* in = input<std::uint8_t>(norms, "norms", bytes);
  auto* out = output<std::uint8_t>(maximum, "maximum", bytes);
  max_norms_be(in, bytes / 4, add ? Accumulate::kAdd : Accumulate::kWrite, out);
}

void pack_array(const py::array& codes, py::array packed, unsigned bits) {
  require_code_bits(bits);
  const auto count = static_cast<std::size_t>(codes.size());
  const auto* in = input<std::uint8_t>(codes, "codes", count);
  pack(in, count, bits, output<std::uint8_t>(packed, "packed", code_bytes(count, bits)));
}

void unpack_array(const py::array& packed, py::array codes, unsigned bits) {
  require_code_bits(bits);
  const auto count = static_cast<std::size_t>(codes.size());
  const auto* in = input<std::uint8_t>(packed, "packed", code_bytes(count, bits));
  unpack(in, count, bits, output<std::uint8_t>(codes, "codes", count));
}

}  // namespace

void register_stages(py::module_& module) {
  module.def("rotate", &rotate_array, py::arg("gradient"), py::arg("residual").none(true), py::arg("rotated"),
             py::kw_only(), py::arg("rotation_block"), py::arg("seed"), py::arg("tensor"), py::arg("round"),
             py::arg("ends").none(true) = py::none());
  module.def("quantize", &quantize_array, py::arg("rotated"), py::arg("max_norms"), py::arg("codes"), py::kw_only(),
             py::arg("coordinates"), py::arg("rotation_block"), py::arg("values"), py::arg("bits"),
             py::arg("threshold"), py::arg("seed"), py::arg("tensor"), py::arg("round"), py::arg("domain"),
             py::arg("phase"), py::arg("keep_error"), py::arg("ends").none(true) = py::none());
  module.def("inverse_rotate", &inverse_rotate_array, py::arg("rotated"), py::arg("out"), py::kw_only(),
             py::arg("rotation_block"), py::arg("seed"), py::arg("tensor"), py::arg("round"),
             py::arg("ends").none(true) = py::none());
  module.def("pack", &pack_array, py::arg("codes"), py::arg("packed"), py::kw_only(), py::arg("bits"));
  module.def("unpack", &unpack_array, py::arg("packed"), py::arg("codes"), py::kw_only(), py::arg("bits"));
  module.def("max_norms_be", &max_norms_be_array, py::arg("norms"), py::arg("maximum"), py::kw_only(), py::arg("add"));
  module.def(
      "table_hash", [](unsigned bits, const py::array& values) { return table_input(values, bits).hash(); },
      py::arg("bits"), py::arg("values"));
  module.def(
      "use_instruction_set", [](const std::optional<std::string>& name) { testing::use_instruction_set(name); },
      py::arg("name").none(true));
}

}  // namespace thc::python
