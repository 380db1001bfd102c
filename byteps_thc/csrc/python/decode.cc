#include "thc/decode.h"

#include <pybind11/stl.h>

#include <cmath>
#include <optional>

#include "python/layout_input.h"
#include "python/register.h"
#include "thc/errors.h"
#include "thc/threaded_kernels.h"

namespace thc::python {
namespace {

/// What an aggregator and the configuration say, unchecked.
struct AggregateArguments {
  const py::array& aggregate;
  const py::array& contributions;
  const py::array& max_norms;
  std::size_t codes_per_chunk;
  std::size_t granularity;
  float threshold;
};

Contributions checked_contributions(const py::array& contributions, std::size_t chunks) {
  if (holds<std::uint16_t>(contributions)) {
    return input<std::uint16_t>(contributions, "contributions", chunks);
  }
  return input<std::uint8_t>(contributions, "contributions", chunks);
}

Aggregate checked(const AggregateArguments& arguments, const BlockLayout& layout) {
  if (arguments.codes_per_chunk == 0 || arguments.codes_per_chunk % kMinRotationBlock != 0) {
    throw ConfigurationError("codes_per_chunk must be a positive multiple of " + std::to_string(kMinRotationBlock) +
                             ", got " + std::to_string(arguments.codes_per_chunk));
  }
  if (arguments.granularity == 0 || arguments.granularity > wire::kMaxGranularity) {
    throw ConfigurationError("granularity must be in 1.." + std::to_string(wire::kMaxGranularity) + ", got " +
                             std::to_string(arguments.granularity));
  }
  if (!(arguments.threshold > 0.0F) || !std::isfinite(arguments.threshold)) {
    throw ConfigurationError("threshold must be positive and finite, got " + std::to_string(arguments.threshold));
  }
  const std::size_t chunks = (layout.padded() + arguments.codes_per_chunk - 1) / arguments.codes_per_chunk;
  Aggregate aggregate{};
  if (holds<std::uint16_t>(arguments.aggregate)) {
    aggregate.sums = input<std::uint16_t>(arguments.aggregate, "aggregate", layout.padded());
    aggregate.value_bits = 16;
  } else if (holds<std::uint8_t>(arguments.aggregate)) {
    aggregate.sums = input<std::uint8_t>(arguments.aggregate, "aggregate", layout.padded());
    aggregate.value_bits = 8;
  } else {
    refuse("aggregate", "uint8 or uint16", describe(arguments.aggregate));
  }
  aggregate.contributions = checked_contributions(arguments.contributions, chunks);
  aggregate.max_norms = input<float>(arguments.max_norms, "max_norms", layout.blocks());
  aggregate.codes_per_chunk = arguments.codes_per_chunk;
  aggregate.granularity = static_cast<std::uint16_t>(arguments.granularity);
  aggregate.threshold = arguments.threshold;
  return aggregate;
}

void decode_array(const py::array& aggregate, const py::array& contributions, const py::array& max_norms, py::array out,
                  std::size_t coordinates, std::size_t codes_per_chunk, std::size_t rotation_block,
                  std::size_t granularity, float threshold, std::uint64_t seed, std::uint32_t tensor,
                  std::uint32_t round, const std::optional<py::array>& ends, ThreadPool* pool) {
  const BlockLayout layout = layout_input(coordinates, rotation_block, ends);
  const Aggregate in = checked({aggregate, contributions, max_norms, codes_per_chunk, granularity, threshold}, layout);
  const Floats average = float_output(out, "out", layout.coordinates());
  const py::gil_scoped_release unlocked;
  threaded::decode(pool, in, layout, {seed, tensor, round}, average);
}

}  // namespace

void register_decode(py::module_& module) {
  module.def("decode", &decode_array, py::arg("aggregate"), py::arg("contributions"), py::arg("max_norms"),
             py::arg("out"), py::kw_only(), py::arg("coordinates"), py::arg("codes_per_chunk"),
             py::arg("rotation_block"), py::arg("granularity"), py::arg("threshold"), py::arg("seed"),
             py::arg("tensor"), py::arg("round"), py::arg("ends").none(true) = py::none(),
             py::arg("pool") = py::none());
}

}  // namespace thc::python
