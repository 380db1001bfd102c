#include "thc/block_codes.h"

#include <algorithm>
#include <vector>

#include "python/arrays.h"
#include "python/register.h"
#include "thc/errors.h"
#include "thc/pack.h"

namespace thc::python {
namespace {

BlockTable make_table(const py::array& words, std::uint32_t first) {
  if (!is_native(words.dtype(), 'i', sizeof(std::int64_t))) {
    refuse("words", "int64", describe(words));
  }
  const auto count = static_cast<std::size_t>(words.size());
  check_layout(words, "words", "int64", count);
  const auto* begin = static_cast<const std::int64_t*>(words.data());
  return BlockTable({begin, begin + count}, first);
}

py::array_t<std::int64_t> table_words(const BlockTable& table) {
  const Blocks blocks = table.blocks();
  py::array_t<std::int64_t> words(static_cast<py::ssize_t>(blocks.size()));
  std::ranges::copy(blocks.words, words.mutable_data());
  return words;
}

void check_bits(unsigned bits) {
  if (bits < 1 || bits > kMaxBlockBits) {
    throw ConfigurationError("bits must be in 1 .. " + std::to_string(kMaxBlockBits) + ", not " + std::to_string(bits));
  }
}

/// Rows of uint8[ranks, count] with any stride, as in messages.
std::vector<const std::uint8_t*> rows(const py::array& array, const char* name, std::size_t ranks, std::size_t count) {
  const bool fits = holds<std::uint8_t>(array) && array.ndim() == 2 && ranks > 0 &&
                    static_cast<std::size_t>(array.shape(0)) == ranks &&
                    static_cast<std::size_t>(array.shape(1)) == count;
  if (!fits || (count > 1 && array.strides(1) != 1)) {
    const std::string size = ranks > 0 ? std::to_string(ranks) : "ranks";
    refuse(name, "uint8[" + size + ", " + std::to_string(count) + "] of contiguous rows", describe(array));
  }
  std::vector<const std::uint8_t*> found;
  const auto* first = static_cast<const std::uint8_t*>(array.data());
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    found.push_back(first + static_cast<py::ssize_t>(rank) * array.strides(0));
  }
  return found;
}

std::vector<BlockCodes> rank_inputs(const py::array& codes, const py::array& scales, Blocks blocks, unsigned bits) {
  const auto count = codes.ndim() == 2 ? static_cast<std::size_t>(codes.shape(0)) : 0;
  const auto packed = rows(codes, "codes", count, code_bytes(blocks.size() * kBlock, bits));
  const auto bytes = rows(scales, "scales", count, scale_bytes(blocks.size()));
  std::vector<BlockCodes> ranks;
  for (std::size_t rank = 0; rank < count; ++rank) {
    ranks.push_back({packed[rank], bytes[rank]});
  }
  return ranks;
}

/// Refuses arrays that end before the last block.
void check_reach(const py::array& array, const char* name, Blocks blocks) {
  if (static_cast<std::size_t>(array.size()) < blocks.end()) {
    refuse(name, std::to_string(blocks.end()) + " floats or more", describe(array));
  }
}

constexpr std::uint32_t domain_of(bool down) { return down ? kDownSignDomain : kSignDomain; }

void encode_array(const py::array& gradient, py::array codes, py::array scales, const BlockTable& table, unsigned bits,
                  std::uint64_t seed, std::uint32_t tensor, std::uint32_t round, std::size_t rank, std::size_t ranks,
                  bool down, ThreadPool* pool) {
  check_bits(bits);
  if (rank >= ranks) {
    throw ConfigurationError("rank must be below ranks, " + std::to_string(ranks) + ", not " + std::to_string(rank));
  }
  const Blocks blocks = table.blocks();
  const ConstFloats in = float_input(gradient, "gradient", static_cast<std::size_t>(gradient.size()));
  check_reach(gradient, "gradient", blocks);
  auto* packed = output<std::uint8_t>(codes, "codes", code_bytes(blocks.size() * kBlock, bits));
  auto* bytes = output<std::uint8_t>(scales, "scales", scale_bytes(blocks.size()));
  const py::gil_scoped_release unlocked;
  const BlockRandom random({seed, tensor, round}, domain_of(down));
  encode_blocks(pool, in, blocks, random.of_rank(rank, ranks), bits, packed, bytes);
}

std::uint32_t decode_array(const py::array& codes, const py::array& scales, py::array out, const BlockTable& table,
                           unsigned bits, std::uint64_t seed, std::uint32_t tensor, std::uint32_t round, bool down,
                           ThreadPool* pool) {
  check_bits(bits);
  const Blocks blocks = table.blocks();
  const std::vector<BlockCodes> in = rank_inputs(codes, scales, blocks, bits);
  const Floats average = float_output(out, "out", static_cast<std::size_t>(out.size()));
  check_reach(out, "out", blocks);
  const py::gil_scoped_release unlocked;
  const BlockRandom random({seed, tensor, round}, domain_of(down));
  return decode_blocks(pool, in, blocks, random, bits, average);
}

void recode_array(const py::array& codes, const py::array& scales, py::array down_codes, py::array down_scales,
                  const BlockTable& table, unsigned bits, unsigned down_bits, std::uint64_t seed, std::uint32_t tensor,
                  std::uint32_t round, ThreadPool* pool) {
  check_bits(bits);
  check_bits(down_bits);
  const Blocks blocks = table.blocks();
  const std::vector<BlockCodes> in = rank_inputs(codes, scales, blocks, bits);
  auto* packed = output<std::uint8_t>(down_codes, "down_codes", code_bytes(blocks.size() * kBlock, down_bits));
  auto* bytes = output<std::uint8_t>(down_scales, "down_scales", scale_bytes(blocks.size()));
  const py::gil_scoped_release unlocked;
  const RandomKey key{seed, tensor, round};
  recode_blocks(pool, in, blocks, BlockRandom(key, kSignDomain), bits, BlockRandom(key, kDownSignDomain), down_bits,
                packed, bytes);
}

}  // namespace

void register_arguments(py::module_& module) {
  py::class_<ThreadPool>(module, "ThreadPool")
      .def(py::init<unsigned>(), py::arg("threads"))
      .def_property_readonly("threads", &ThreadPool::threads);
  py::class_<BlockTable>(module, "BlockTable")
      .def(py::init(&make_table), py::arg("words"), py::arg("first") = 0)
      .def_property_readonly("words", &table_words)
      .def_property_readonly("first", [](const BlockTable& table) { return table.blocks().first; })
      .def("__len__", [](const BlockTable& table) { return table.blocks().size(); })
      .def("part", &BlockTable::part, py::arg("begin"), py::arg("end"))
      .def("numbered", &BlockTable::numbered, py::arg("first"))
      .def("shares_words", &BlockTable::shares_words, py::arg("other"));
}

void register_block_codes(py::module_& module) {
  module.def("scale_bytes", &scale_bytes, py::arg("blocks"));
  module.def("encode_blocks", &encode_array, py::arg("gradient"), py::arg("codes"), py::arg("scales"), py::kw_only(),
             py::arg("blocks"), py::arg("bits"), py::arg("seed"), py::arg("tensor"), py::arg("round"),
             py::arg("rank") = 0, py::arg("ranks") = 1, py::arg("down") = false, py::arg("pool") = py::none());
  module.def("decode_blocks", &decode_array, py::arg("codes"), py::arg("scales"), py::arg("out"), py::kw_only(),
             py::arg("blocks"), py::arg("bits"), py::arg("seed"), py::arg("tensor"), py::arg("round"),
             py::arg("down") = false, py::arg("pool") = py::none());
  module.def("recode_blocks", &recode_array, py::arg("codes"), py::arg("scales"), py::arg("down_codes"),
             py::arg("down_scales"), py::kw_only(), py::arg("blocks"), py::arg("bits"), py::arg("down_bits"),
             py::arg("seed"), py::arg("tensor"), py::arg("round"), py::arg("pool") = py::none());
}

}  // namespace thc::python
