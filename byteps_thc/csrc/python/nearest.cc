#include "thc/nearest.h"

#include <pybind11/stl.h>

#include <cstring>
#include <vector>

#include "python/arrays.h"
#include "python/register.h"
#include "thc/bit_stream.h"
#include "thc/errors.h"
#include "thc/threaded_kernels.h"

namespace thc::python {
namespace {

using OptionalArray = std::optional<py::array>;

/// Floats that may lie anywhere.
std::vector<float> copied(const py::array& array, const char* name) {
  const auto count = static_cast<std::size_t>(array.size());
  const float* from = input<float>(array, name, count);
  std::vector<float> floats(count);
  if (count > 0) {
    std::memcpy(floats.data(), from, count * sizeof(float));
  }
  return floats;
}

NearestPoints points_input(const py::array& edges, const py::array& points) {
  return {copied(edges, "edges"), copied(points, "points")};
}

RotationBlocks make_blocks(std::size_t coordinates, std::size_t rotation_block, const OptionalArray& ends) {
  std::vector<std::uint64_t> cuts(ends ? static_cast<std::size_t>(ends->size()) : 0);
  if (!cuts.empty()) {
    std::memcpy(cuts.data(), input<std::uint64_t>(*ends, "ends", cuts.size()), cuts.size() * sizeof(std::uint64_t));
  }
  return {coordinates, rotation_block, cuts};
}

py::array_t<std::int64_t> block_array(const RotationBlocks& blocks) {
  py::array_t<std::int64_t> rows({static_cast<py::ssize_t>(blocks.blocks().size()), py::ssize_t{4}});
  auto to = rows.mutable_unchecked<2>();
  for (std::size_t b = 0; b < blocks.blocks().size(); ++b) {
    const RotationBlock& block = blocks.blocks()[b];
    const auto row = static_cast<py::ssize_t>(b);
    to(row, 0) = static_cast<std::int64_t>(block.coordinate);
    to(row, 1) = static_cast<std::int64_t>(block.offset);
    to(row, 2) = block.size;
    to(row, 3) = block.used;
  }
  return rows;
}

/// The rows of [ranks, count], which may lie apart, as in the message of each rank.
template <typename T>
std::vector<const T*> rows_input(const py::array& array, const char* name, std::size_t ranks, std::size_t count) {
  const std::string expected = type_name<T>() + "[" + std::to_string(ranks) + ", " + std::to_string(count) + "]";
  const bool fits = holds<T>(array) && array.ndim() == 2 && static_cast<std::size_t>(array.shape(0)) == ranks &&
                    static_cast<std::size_t>(array.shape(1)) == count;
  if (!fits || (count > 1 && array.strides(1) != static_cast<py::ssize_t>(sizeof(T)))) {
    refuse(name, expected + " of contiguous rows", describe(array));
  }
  std::vector<const T*> rows;
  const auto* first = static_cast<const std::uint8_t*>(array.data());
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    rows.push_back(reinterpret_cast<const T*>(first + static_cast<py::ssize_t>(rank) * array.strides(0)));
  }
  return rows;
}

/// What all ranks sent, and the points that it is decoded with.
struct RankInputs {
  unsigned bits;
  std::vector<float> points;
  std::vector<NearestCodes> ranks;

  RankInputs(const py::array& codes, const py::array& scales, const py::array& rank_points,
             const RotationBlocks& blocks)
      : bits(0), points(copied(rank_points, "points")) {
    if (rank_points.ndim() != 2 || rank_points.shape(0) < 1) {
      refuse("points", "float32[ranks, 2^bits]", describe(rank_points));
    }
    const auto count = static_cast<std::size_t>(rank_points.shape(0));
    const auto entries = static_cast<std::size_t>(rank_points.shape(1));
    while (bits < kMaxPointBits && (std::size_t{1} << bits) < entries) {
      ++bits;
    }
    if (entries != std::size_t{1} << bits || bits == 0) {
      refuse("points", "2, 4 .. 256 of each rank", std::to_string(entries));
    }
    const auto packed = rows_input<std::uint8_t>(codes, "codes", count, code_bytes(blocks.padded(), bits));
    const auto factors = rows_input<float>(scales, "scales", count, blocks.blocks().size());
    for (std::size_t rank = 0; rank < count; ++rank) {
      ranks.push_back({packed[rank], factors[rank], points.data() + rank * entries});
    }
  }
};

constexpr Hop hop_of(bool down) { return down ? Hop::kDown : Hop::kUp; }

void encode_array(const py::array& gradient, py::array codes, py::array scales, const RotationBlocks& blocks,
                  const py::array& edges, const py::array& points, std::uint64_t seed, std::uint32_t tensor,
                  std::uint32_t round, bool down, ThreadPool* pool) {
  const NearestPoints cells = points_input(edges, points);
  const ConstFloats in = float_input(gradient, "gradient", blocks.coordinates());
  auto* packed = output<std::uint8_t>(codes, "codes", code_bytes(blocks.padded(), cells.bits()));
  float* factors = output<float>(scales, "scales", blocks.blocks().size());
  const py::gil_scoped_release unlocked;
  threaded::encode_nearest(pool, in, blocks.blocks(), {seed, tensor, round}, hop_of(down), cells, packed, factors);
}

void decode_array(const py::array& codes, const py::array& scales, py::array out, const RotationBlocks& blocks,
                  const py::array& points, std::uint64_t seed, std::uint32_t tensor, std::uint32_t round, bool down,
                  ThreadPool* pool) {
  const RankInputs in(codes, scales, points, blocks);
  const Floats average = float_output(out, "out", blocks.coordinates());
  const py::gil_scoped_release unlocked;
  threaded::decode_nearest(pool, in.ranks, in.bits, blocks.blocks(), {seed, tensor, round}, hop_of(down), average);
}

void recode_array(const py::array& codes, const py::array& scales, py::array down_codes, py::array down_scales,
                  const RotationBlocks& blocks, const py::array& points, const py::array& down_edges,
                  const py::array& down_points, std::uint64_t seed, std::uint32_t tensor, std::uint32_t round,
                  ThreadPool* pool) {
  const RankInputs in(codes, scales, points, blocks);
  const NearestPoints cells = points_input(down_edges, down_points);
  auto* packed = output<std::uint8_t>(down_codes, "down_codes", code_bytes(blocks.padded(), cells.bits()));
  float* factors = output<float>(down_scales, "down_scales", blocks.blocks().size());
  const py::gil_scoped_release unlocked;
  threaded::recode_nearest(pool, in.ranks, in.bits, blocks.blocks(), {seed, tensor, round}, cells, packed, factors);
}

}  // namespace

void register_arguments(py::module_& module) {
  py::class_<ThreadPool>(module, "ThreadPool")
      .def(py::init<unsigned>(), py::arg("threads"))
      .def_property_readonly("threads", &ThreadPool::threads);
  py::class_<RotationBlocks>(module, "RotationBlocks")
      .def(py::init(&make_blocks), py::arg("coordinates"), py::arg("rotation_block"),
           py::arg("ends").none(true) = py::none())
      .def_property_readonly("coordinates", &RotationBlocks::coordinates)
      .def_property_readonly("padded", &RotationBlocks::padded)
      .def("__len__", [](const RotationBlocks& blocks) { return blocks.blocks().size(); })
      .def("array", &block_array)
      .def("part", &RotationBlocks::part, py::arg("begin"), py::arg("end"));
}

void register_nearest(py::module_& module) {
  module.def("encode_nearest", &encode_array, py::arg("gradient"), py::arg("codes"), py::arg("scales"), py::kw_only(),
             py::arg("blocks"), py::arg("edges"), py::arg("points"), py::arg("seed"), py::arg("tensor"),
             py::arg("round"), py::arg("down") = false, py::arg("pool") = py::none());
  module.def("decode_nearest", &decode_array, py::arg("codes"), py::arg("scales"), py::arg("out"), py::kw_only(),
             py::arg("blocks"), py::arg("points"), py::arg("seed"), py::arg("tensor"), py::arg("round"),
             py::arg("down") = false, py::arg("pool") = py::none());
  module.def("recode_nearest", &recode_array, py::arg("codes"), py::arg("scales"), py::arg("down_codes"),
             py::arg("down_scales"), py::kw_only(), py::arg("blocks"), py::arg("points"), py::arg("down_edges"),
             py::arg("down_points"), py::arg("seed"), py::arg("tensor"), py::arg("round"),
             py::arg("pool") = py::none());
}

}  // namespace thc::python
