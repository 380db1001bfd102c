#include "thc/segments.h"

#include <pybind11/stl.h>

#include <optional>

#include "python/arrays.h"
#include "python/register.h"

namespace thc::python {
namespace {

using OptionalArray = std::optional<py::array>;

/// Segments of `coordinates`; InputError unless they are ascending, disjoint and within.
Segments segments_input(const py::array& starts, const py::array& sizes, std::size_t coordinates) {
  const auto count = static_cast<std::size_t>(starts.size());
  const Segments segments{{input<std::uint64_t>(starts, "starts", count), count},
                          {input<std::uint64_t>(sizes, "sizes", count), count}};
  std::size_t before = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (segments.starts[i] < before || segments.starts[i] > coordinates ||
        segments.sizes[i] > coordinates - segments.starts[i]) {
      throw InputError("segments must be ascending, disjoint and within " + std::to_string(coordinates) +
                       " coordinates, got " + std::to_string(segments.sizes[i]) + " from " +
                       std::to_string(segments.starts[i]) + " on");
    }
    before = segments.end(i);
  }
  return segments;
}

ConstFloats optional_input(const OptionalArray& array, const char* name, std::size_t size) {
  return array ? float_input(*array, name, size) : ConstFloats{};
}

void segment_norms_array(const py::array& gradient, const OptionalArray& residual, const py::array& starts,
                         const py::array& sizes, py::array norms, ThreadPool* pool) {
  const auto count = static_cast<std::size_t>(gradient.size());
  const Segments segments = segments_input(starts, sizes, count);
  const ConstFloats in = float_input(gradient, "gradient", count);
  const ConstFloats carried = optional_input(residual, "residual", count);
  float* out = output<float>(norms, "norms", segments.count());
  const py::gil_scoped_release unlocked;
  segment_norms(pool, in, carried, segments, out);
}

void scale_segments_array(const py::array& in, const OptionalArray& addend, const py::array& starts,
                          const py::array& sizes, const py::array& factors, py::array out, ThreadPool* pool) {
  const auto count = static_cast<std::size_t>(in.size());
  const Segments segments = segments_input(starts, sizes, count);
  const ConstFloats from = float_input(in, "in", count);
  const ConstFloats added = optional_input(addend, "addend", count);
  const float* by = input<float>(factors, "factors", segments.count());
  const Floats to = float_output(out, "out", count);
  const py::gil_scoped_release unlocked;
  scale_segments(pool, from, added, count, segments, by, to);
}

}  // namespace

void register_segments(py::module_& module) {
  module.def("segment_norms", &segment_norms_array, py::arg("gradient"), py::arg("residual").none(true),
             py::arg("starts"), py::arg("sizes"), py::arg("norms"), py::kw_only(), py::arg("pool") = py::none());
  module.def("scale_segments", &scale_segments_array, py::arg("values"), py::arg("addend").none(true),
             py::arg("starts"), py::arg("sizes"), py::arg("factors"), py::arg("out"), py::kw_only(),
             py::arg("pool") = py::none());
}

}  // namespace thc::python
