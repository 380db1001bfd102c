// Kernels of servers' aggregates: blocks, norms, codes, sums, averages.
#include <pybind11/stl.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>

#include "python/layout_input.h"
#include "python/register.h"
#include "python/table_input.h"
#include "thc/checksum.h"
#include "thc/decode.h"
#include "thc/encode.h"
#include "thc/errors.h"
#include "thc/instruction_set.h"
#include "thc/lookup_sum.h"
#include "thc/pack.h"
#include "thc/rotation.h"

namespace thc::python {
namespace {

using OptionalArray = std::optional<py::array>;

void block_norms_array(const py::array& gradient, const OptionalArray& residual, py::array norms,
                       std::size_t rotation_block, const OptionalArray& ends, ThreadPool* pool) {
  const BlockLayout layout = layout_input(static_cast<std::size_t>(gradient.size()), rotation_block, ends);
  const ConstFloats in = float_input(gradient, "gradient", layout.coordinates());
  const float* carried = residual ? input<float>(*residual, "residual", layout.coordinates()) : nullptr;
  float* out = output<float>(norms, "norms", layout.blocks());
  const py::gil_scoped_release unlocked;
  block_norms(pool, in, carried, layout, out);
}

void check_threshold(float threshold) {
  if (!(threshold > 0.0F) || !std::isfinite(threshold)) {
    throw ConfigurationError("threshold must be positive and finite, got " + std::to_string(threshold));
  }
}

std::size_t encode_array(const py::array& gradient, std::optional<py::array> residual, const py::array& max_norms,
                         py::array codes, std::size_t rotation_block, const py::array& values, unsigned bits,
                         float threshold, std::uint64_t seed, std::uint32_t tensor, std::uint32_t round,
                         std::uint32_t domain, std::uint16_t phase, bool keep_error, const OptionalArray& ends,
                         ThreadPool* pool) {
  const BlockLayout layout = layout_input(static_cast<std::size_t>(gradient.size()), rotation_block, ends);
  const LookupTable table = table_input(values, bits);
  check_threshold(threshold);
  if (keep_error && !residual) {
    throw InputError("residual: expected an array, because the error is to be kept, got None");
  }
  const QuantizeOptions options{threshold, {seed, tensor, round}, {domain, phase}, keep_error};
  const ConstFloats in = float_input(gradient, "gradient", layout.coordinates());
  float* carried = residual ? output<float>(*residual, "residual", layout.coordinates()) : nullptr;
  const float* norms = input<float>(max_norms, "max_norms", layout.blocks());
  auto* packed = output<std::uint8_t>(codes, "codes", code_bytes(layout.padded(), bits));
  const py::gil_scoped_release unlocked;
  return encode(pool, in, carried, norms, layout, table, options, packed);
}

template <typename Sum>
void lookup_sum_of(const std::uint8_t* codes, const LookupTable& table, Accumulate mode, py::array& aggregate) {
  const auto count = static_cast<std::size_t>(aggregate.size());
  Sum* sums = output<Sum>(aggregate, "aggregate", count);
  const py::gil_scoped_release unlocked;
  lookup_sum(codes, count, table, mode, sums);
}

std::uint32_t checksum_array(const py::array& array) {
  constexpr std::array<std::uint8_t, sizeof(wire::Header)> kNoHeader{};
  check_layout(array, "array", "array", static_cast<std::size_t>(array.size()));
  const std::span bytes(static_cast<const std::uint8_t*>(array.data()), static_cast<std::size_t>(array.nbytes()));
  const py::gil_scoped_release unlocked;
  return checksum(kNoHeader, checksum_lanes(bytes));
}

void lookup_sum_array(const py::array& codes, const py::array& values, py::array aggregate, unsigned bits, bool add) {
  const LookupTable table = table_input(values, bits);
  const auto count = static_cast<std::size_t>(aggregate.size());
  const auto* packed = input<std::uint8_t>(codes, "codes", code_bytes(count, bits));
  const Accumulate mode = add ? Accumulate::kAdd : Accumulate::kWrite;
  if (holds<std::uint16_t>(aggregate)) {
    lookup_sum_of<std::uint16_t>(packed, table, mode, aggregate);
  } else if (!holds<std::uint8_t>(aggregate)) {
    refuse("aggregate", "uint8 or uint16", describe(aggregate));
  } else if (table.granularity() > 0xff) {
    refuse("aggregate", "uint16, because the granularity is " + std::to_string(table.granularity()), "uint8");
  } else {
    lookup_sum_of<std::uint8_t>(packed, table, mode, aggregate);
  }
}

void check_packets(std::size_t codes_per_chunk, std::size_t granularity) {
  if (codes_per_chunk == 0 || codes_per_chunk % kMinRotationBlock != 0) {
    throw ConfigurationError("codes_per_chunk must be a positive multiple of " + std::to_string(kMinRotationBlock) +
                             ", got " + std::to_string(codes_per_chunk));
  }
  if (granularity == 0 || granularity > wire::kMaxGranularity) {
    throw ConfigurationError("granularity must be in 1.." + std::to_string(wire::kMaxGranularity) + ", got " +
                             std::to_string(granularity));
  }
}

void decode_array(const py::array& aggregate, const py::array& contributions, const py::array& max_norms, py::array out,
                  std::size_t coordinates, std::size_t codes_per_chunk, std::size_t rotation_block,
                  std::size_t granularity, float threshold, std::uint64_t seed, std::uint32_t tensor,
                  std::uint32_t round, const OptionalArray& ends, ThreadPool* pool) {
  const BlockLayout layout = layout_input(coordinates, rotation_block, ends);
  check_packets(codes_per_chunk, granularity);
  check_threshold(threshold);
  const std::size_t chunks = (layout.padded() + codes_per_chunk - 1) / codes_per_chunk;
  const bool wide = holds<std::uint16_t>(aggregate);
  if (!wide && !holds<std::uint8_t>(aggregate)) refuse("aggregate", "uint8 or uint16", describe(aggregate));
  const Aggregate in{
      .sums = wide ? static_cast<const void*>(input<std::uint16_t>(aggregate, "aggregate", layout.padded()))
                   : input<std::uint8_t>(aggregate, "aggregate", layout.padded()),
      .value_bits = wide ? 16U : 8U,
      .contributions = input<std::uint16_t>(contributions, "contributions", chunks),
      .codes_per_chunk = codes_per_chunk,
      .granularity = static_cast<std::uint16_t>(granularity),
      .threshold = threshold,
      .max_norms = input<float>(max_norms, "max_norms", layout.blocks())};
  const Floats average = float_output(out, "out", layout.coordinates());
  const py::gil_scoped_release unlocked;
  decode(pool, in, layout, {seed, tensor, round}, average);
}

}  // namespace

void register_servers(py::module_& module) {
  module.def(
      "padded_size",
      [](std::size_t coordinates, std::size_t rotation_block) {
        return BlockLayout(coordinates, rotation_block).padded();
      },
      py::arg("coordinates"), py::arg("rotation_block"));
  module.def(
      "block_sizes",
      [](std::size_t coordinates, std::size_t rotation_block, const OptionalArray& ends) {
        const BlockLayout layout = layout_input(coordinates, rotation_block, ends);
        py::array_t<std::int64_t> sizes(static_cast<py::ssize_t>(layout.blocks()));
        for (std::size_t i = 0; i < layout.blocks(); ++i) {
          sizes.mutable_at(static_cast<py::ssize_t>(i)) = static_cast<std::int64_t>(layout.size(i));
        }
        return sizes;
      },
      py::arg("coordinates"), py::arg("rotation_block"), py::arg("ends").none(true) = py::none());
  module.def("block_norms", &block_norms_array, py::arg("gradient"), py::arg("residual").none(true), py::arg("norms"),
             py::kw_only(), py::arg("rotation_block"), py::arg("ends").none(true) = py::none(),
             py::arg("pool") = py::none());
  module.def("code_bytes", &code_bytes, py::arg("count"), py::arg("bits"));
  module.def("encode", &encode_array, py::arg("gradient"), py::arg("residual").none(true), py::arg("max_norms"),
             py::arg("codes"), py::kw_only(), py::arg("rotation_block"), py::arg("values"), py::arg("bits"),
             py::arg("threshold"), py::arg("seed"), py::arg("tensor"), py::arg("round"), py::arg("domain"),
             py::arg("phase"), py::arg("keep_error"), py::arg("ends").none(true) = py::none(),
             py::arg("pool") = py::none());
  module.def("checksum", &checksum_array, py::arg("array"));
  module.def("lookup_sum", &lookup_sum_array, py::arg("codes"), py::arg("values"), py::arg("aggregate"), py::kw_only(),
             py::arg("bits"), py::arg("add"));
  module.def("decode", &decode_array, py::arg("aggregate"), py::arg("contributions"), py::arg("max_norms"),
             py::arg("out"), py::kw_only(), py::arg("coordinates"), py::arg("codes_per_chunk"),
             py::arg("rotation_block"), py::arg("granularity"), py::arg("threshold"), py::arg("seed"),
             py::arg("tensor"), py::arg("round"), py::arg("ends").none(true) = py::none(),
             py::arg("pool") = py::none());
  module.def("instruction_sets", &instruction_sets);
}

}  // namespace thc::python
