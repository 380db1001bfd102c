#include <pybind11/stl.h>

#include <cmath>
#include <optional>

#include "python/layout_input.h"
#include "python/register.h"
#include "python/table_input.h"
#include "thc/bit_stream.h"
#include "thc/errors.h"
#include "thc/keep_loss.h"
#include "thc/requantize.h"
#include "thc/threaded_kernels.h"

namespace thc::python {
namespace {

template <typename Sum>
void lookup_sum_of(ThreadPool* pool, const std::uint8_t* codes, const LookupTable& table, Accumulate mode,
                   py::array& aggregate) {
  const auto count = static_cast<std::size_t>(aggregate.size());
  Sum* sums = output<Sum>(aggregate, "aggregate", count);
  const py::gil_scoped_release unlocked;
  threaded::lookup_sum(pool, codes, count, table, mode, sums);
}

void lookup_sum_array(const py::array& codes, const py::array& values, py::array aggregate, unsigned bits, bool add,
                      ThreadPool* pool) {
  const LookupTable table = table_input(values, bits);
  const auto count = static_cast<std::size_t>(aggregate.size());
  const auto* packed = input<std::uint8_t>(codes, "codes", code_bytes(count, bits));
  const Accumulate mode = add ? Accumulate::kAdd : Accumulate::kWrite;
  if (holds<std::uint16_t>(aggregate)) {
    lookup_sum_of<std::uint16_t>(pool, packed, table, mode, aggregate);
  } else if (!holds<std::uint8_t>(aggregate)) {
    refuse("aggregate", "uint8 or uint16", describe(aggregate));
  } else if (table.granularity() > 0xff) {
    refuse("aggregate", "uint16, because the granularity is " + std::to_string(table.granularity()), "uint8");
  } else {
    lookup_sum_of<std::uint8_t>(pool, packed, table, mode, aggregate);
  }
}

ExactSums exact_sums(const py::array& sums, std::size_t workers, std::size_t granularity) {
  const auto count = static_cast<std::size_t>(sums.size());
  const std::size_t most = workers * granularity;
  if (workers == 0 || granularity == 0 || workers > 0xffff || granularity > 0xffff || most > 0xffff) {
    throw ConfigurationError("granularity * workers must be in 1 .. 65535, got " + std::to_string(granularity) + " * " +
                             std::to_string(workers));
  }
  if (count % kMinRotationBlock != 0) {
    refuse("sums", "a multiple of " + std::to_string(kMinRotationBlock) + " sums", std::to_string(count));
  }
  ExactSums exact{nullptr, 8, count, static_cast<std::uint32_t>(most), nullptr, static_cast<unsigned>(workers)};
  if (holds<std::uint16_t>(sums)) {
    exact.sums = input<std::uint16_t>(sums, "sums", count);
    exact.value_bits = 16;
  } else if (!holds<std::uint8_t>(sums) || most > 0xff) {
    refuse("sums", most > 0xff ? "uint16" : "uint8 or uint16", describe(sums));
  } else {
    exact.sums = input<std::uint8_t>(sums, "sums", count);
  }
  return exact;
}

void check_first(std::size_t first) {
  if (first % kScaleGroup != 0) {
    throw ConfigurationError("first must be a multiple of " + std::to_string(kScaleGroup) + ", got " +
                             std::to_string(first));
  }
}

void requantize_array(const py::array& sums, py::array codes, py::array scales, std::size_t first, std::size_t workers,
                      std::size_t granularity, const py::array& values, unsigned bits, std::uint64_t seed,
                      std::uint32_t tensor, std::uint32_t round, const std::optional<py::array>& known,
                      std::uint32_t domain, ThreadPool* pool) {
  check_first(first);
  const LookupTable table = table_input(values, bits);
  ExactSums exact = exact_sums(sums, workers, granularity);
  const std::optional<KnownError> known_error = known_input(known);
  exact.known = known_error ? &*known_error : nullptr;
  exact.domain = domain;
  auto* packed = output<std::uint8_t>(codes, "codes", code_bytes(exact.count, bits));
  auto* limits = output<std::uint16_t>(scales, "scales", scale_groups(exact.count));
  const py::gil_scoped_release unlocked;
  threaded::requantize(pool, exact, table, {seed, tensor, round, first}, packed, limits);
}

void keep_loss_array(const py::array& sums, const py::array& codes, const py::array& scales, const py::array& max_norms,
                     py::array residual, std::size_t first, std::size_t workers, std::size_t granularity,
                     const py::array& values, unsigned bits, std::size_t rotation_block, float threshold,
                     std::uint64_t seed, std::uint32_t tensor, std::uint32_t round,
                     const std::optional<py::array>& known, std::uint32_t domain, const std::optional<py::array>& ends,
                     ThreadPool* pool) {
  check_first(first);
  if (!(threshold > 0.0F) || !std::isfinite(threshold)) {
    throw ConfigurationError("threshold must be positive and finite, got " + std::to_string(threshold));
  }
  const LookupTable table = table_input(values, bits);
  if (table.granularity() > 0xff) {
    refuse("values", "8-bit table values", std::to_string(table.granularity()));
  }
  const BlockLayout layout = layout_input(static_cast<std::size_t>(residual.size()), rotation_block, ends);
  ExactSums exact = exact_sums(sums, workers, granularity);
  const std::optional<KnownError> known_error = known_input(known);
  exact.known = known_error ? &*known_error : nullptr;
  exact.domain = domain;
  if (first > layout.padded() || exact.count > layout.padded() - first) {
    refuse("sums", "the partition's " + std::to_string(layout.padded()) + " at most",
           std::to_string(first) + " + " + std::to_string(exact.count));
  }
  const RequantizedSums requantized{exact, static_cast<std::uint16_t>(granularity),
                                    input<std::uint8_t>(codes, "codes", code_bytes(exact.count, bits)),
                                    input<std::uint16_t>(scales, "scales", scale_groups(exact.count)), first};
  const auto* norms = input<float>(max_norms, "max_norms", layout.blocks());
  const Floats kept = residual_output(residual, layout.coordinates());
  const py::gil_scoped_release unlocked;
  threaded::keep_loss(pool, requantized, table, norms, threshold, layout, {seed, tensor, round}, kept);
}

}  // namespace

void register_aggregation(py::module_& module) {
  module.def("lookup_sum", &lookup_sum_array, py::arg("codes"), py::arg("values"), py::arg("aggregate"), py::kw_only(),
             py::arg("bits"), py::arg("add"), py::arg("pool") = py::none());
  module.def("requantize", &requantize_array, py::arg("sums"), py::arg("codes"), py::arg("scales"), py::kw_only(),
             py::arg("first"), py::arg("workers"), py::arg("granularity"), py::arg("values"), py::arg("bits"),
             py::arg("seed"), py::arg("tensor"), py::arg("round"), py::arg("known").none(true) = py::none(),
             py::arg("domain") = 0, py::arg("pool") = py::none());
  module.def("keep_loss", &keep_loss_array, py::arg("sums"), py::arg("codes"), py::arg("scales"), py::arg("max_norms"),
             py::arg("residual"), py::kw_only(), py::arg("first"), py::arg("workers"), py::arg("granularity"),
             py::arg("values"), py::arg("bits"), py::arg("rotation_block"), py::arg("threshold"), py::arg("seed"),
             py::arg("tensor"), py::arg("round"), py::arg("known").none(true) = py::none(), py::arg("domain") = 0,
             py::arg("ends").none(true) = py::none(), py::arg("pool") = py::none());
}

}  // namespace thc::python
