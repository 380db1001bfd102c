#include "thc/nearest.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "csrc/kernel_fixture.h"
#include "thc/bit_stream.h"
#include "thc/errors.h"
#include "thc/nearest_scale.h"
#include "thc/threaded_kernels.h"

namespace thc::testing {
namespace {

/// Edges and points of 2^bits cells that get wider outwards, `shift` of a cell away from symmetric ones.
struct Cells {
  std::vector<float> edges;
  std::vector<float> points;

  explicit Cells(unsigned bits, float shift = 0) {
    const std::size_t count = std::size_t{1} << bits;
    const auto at = [&](float position) {
      const float x = (position + shift) / static_cast<float>(count) * 2 - 1;
      return 2 * x + x * x * x;
    };
    for (std::size_t i = 0; i < count; ++i) {
      points.push_back(at(static_cast<float>(i) + 0.5F));
      if (i > 0) edges.push_back(at(static_cast<float>(i)));
    }
  }
  NearestPoints made() const { return {edges, points}; }
};

/// Packed codes and bits of scales.
using Encoded = std::tuple<std::vector<std::uint8_t>, std::vector<std::uint32_t>>;

struct Case {
  unsigned bits;
  std::size_t size;
  std::size_t rotation_block = kDefaultRotationBlock;
  std::vector<std::uint64_t> ends = {};
  std::size_t misalignment = 0;
  FloatFormat format = FloatFormat::kFp32;

  RotationBlocks blocks() const { return {size, rotation_block, ends}; }
};

std::vector<std::uint8_t> as_format(const std::vector<float>& values, FloatFormat format) {
  std::vector<std::uint8_t> bytes(values.size() * float_bytes(format));
  from_fp32(values.data(), values.size(), {bytes.data(), format});
  return bytes;
}

Encoded encode(const Case& of, const std::vector<float>& values, const Cells& cells, Hop hop = Hop::kUp) {
  const RotationBlocks blocks = of.blocks();
  Misaligned<std::uint8_t> gradient(as_format(values, of.format), of.misalignment);
  Misaligned<std::uint8_t> codes(code_bytes(blocks.padded(), of.bits), of.misalignment);
  Misaligned<float> scales(blocks.blocks().size(), of.misalignment);
  encode_nearest(ConstFloats{gradient.data(), of.format}, blocks.blocks(), kKey, hop, cells.made(), codes.data(),
                 scales.data());
  return {codes.values(), bits_of(scales.values())};
}

/// Gradients of ranks, encoded, and the cells that they have.
struct Ranks {
  std::vector<Cells> cells;
  std::vector<std::vector<std::uint8_t>> codes;
  std::vector<std::vector<float>> scales;
  std::vector<NearestCodes> all;

  Ranks(const Case& of, std::size_t count, const std::vector<std::size_t>& zero_blocks = {}) {
    const RotationBlocks blocks = of.blocks();
    for (std::size_t r = 0; r < count; ++r) {
      const float shift = (static_cast<float>(r) + 0.5F) / static_cast<float>(count) - 0.5F;
      cells.emplace_back(of.bits, shift);
      std::vector<float> gradient = normal_floats(of.size, static_cast<std::uint32_t>(r) + 1);
      for (const std::size_t b : zero_blocks) {
        const RotationBlock& block = blocks.blocks()[b];
        std::fill_n(gradient.begin() + static_cast<std::ptrdiff_t>(block.coordinate), block.used, 0.0F);
      }
      codes.emplace_back(code_bytes(blocks.padded(), of.bits));
      scales.emplace_back(blocks.blocks().size());
      encode_nearest({gradient.data(), FloatFormat::kFp32}, blocks.blocks(), kKey, Hop::kUp, cells[r].made(),
                     codes[r].data(), scales[r].data());
    }
    for (std::size_t r = 0; r < count; ++r) {
      all.push_back({codes[r].data(), scales[r].data(), cells[r].points.data()});
    }
  }
};

std::vector<std::uint8_t> decode(const Case& of, const Ranks& ranks, Hop hop = Hop::kUp) {
  Misaligned<std::uint8_t> out(of.size * float_bytes(of.format), of.misalignment);
  const RotationBlocks blocks = of.blocks();
  decode_nearest(std::span<const NearestCodes>(ranks.all), of.bits, blocks.blocks(), kKey, hop,
                 Floats{out.data(), of.format});
  return out.values();
}

Encoded recode(const Case& of, const Ranks& ranks, unsigned down_bits) {
  const RotationBlocks blocks = of.blocks();
  Misaligned<std::uint8_t> codes(code_bytes(blocks.padded(), down_bits), of.misalignment);
  Misaligned<float> scales(blocks.blocks().size(), of.misalignment);
  recode_nearest(std::span<const NearestCodes>(ranks.all), of.bits, blocks.blocks(), kKey, Cells(down_bits).made(),
                 codes.data(), scales.data());
  return {codes.values(), bits_of(scales.values())};
}

class Nearest : public EveryInstructionSet {};
THC_INSTANTIATE_EVERY_INSTRUCTION_SET(Nearest);

std::vector<std::uint64_t> ends_of_rows(std::size_t width, std::size_t size) {
  std::vector<std::uint64_t> ends;
  for (std::size_t end = width; end < size; end += width) ends.push_back(end);
  return ends;
}

/// Of all widths: blocks of all sizes, padding, ends at and beside multiples of 64, rows.
std::vector<Case> cases(unsigned bits) {
  return {{bits, 0},
          {bits, 1, 64},
          {bits, 64, 64, {}, 1},
          {bits, 1000, 128},
          {bits, 21000, kDefaultRotationBlock, {}, 3},
          {bits, 21000, kDefaultRotationBlock, {1, 64, 100, 8300, 20000}},
          {bits, 3000, 256, ends_of_rows(100, 3000), 2},
          {bits, 300, 64, ends_of_rows(7, 300), 1},
          {bits, 500, 64, ends_of_rows(48, 500)},
          {bits, 16384, kDefaultRotationBlock, {}, 0, FloatFormat::kBf16},
          {bits, 9001, 4096, {77}, 1, FloatFormat::kFp16},
          {bits, 140000, std::size_t{1} << 17}};
}

TEST_P(Nearest, EncodeGivesTheSameBits) {
  for (unsigned bits = 1; bits <= kMaxPointBits; ++bits) {
    for (const Case& of : cases(bits)) {
      SCOPED_TRACE(std::to_string(bits) + " bits, size " + std::to_string(of.size));
      for (const float shift : {0.0F, 0.3F}) {
        expect_same<Encoded>(
            [&] { return encode(of, normal_floats(of.size), Cells(bits, shift), shift == 0 ? Hop::kUp : Hop::kDown); });
      }
    }
  }
}

/// Sums of the largest block have the most levels.
TEST_P(Nearest, EncodeOfTheLargestBlockGivesTheSameBits) {
  const Case of{5, kMaxRotationBlock, kMaxRotationBlock};
  expect_same<Encoded>([&] { return encode(of, normal_floats(of.size), Cells(5)); });
}

TEST_P(Nearest, DecodeAndRecodeGiveTheSameBits) {
  for (unsigned bits = 1; bits <= kMaxPointBits; ++bits) {
    for (const Case& of : cases(bits)) {
      for (const std::size_t count : {1UL, 2UL, 5UL}) {
        SCOPED_TRACE(std::to_string(bits) + " bits, size " + std::to_string(of.size) + ", " + std::to_string(count));
        const Ranks ranks(of, count);
        using Bytes = std::vector<std::uint8_t>;
        expect_same<Bytes>([&] { return decode(of, ranks); });
        expect_same<Encoded>([&] { return recode(of, ranks, 1 + (bits + 2) % 8); });
      }
    }
  }
}

/// A value on an edge is in the cell above it; those beyond the outermost edges are in the outermost cells.
TEST_P(Nearest, SearchFindsTheCellOfEveryEdge) {
  for (unsigned bits = 1; bits <= kMaxPointBits; ++bits) {
    const Cells cells(bits, 0.25F);
    const NearestPoints points = cells.made();
    for (std::size_t code = 0; code < cells.points.size(); ++code) {
      unsigned found = 0;
      for (unsigned level = 0; level < bits; ++level) {
        const float z = code == 0 ? -1e30F : cells.edges[code - 1];
        found = 2 * found + (z >= points.level(level)[found] ? 1U : 0U);
      }
      EXPECT_EQ(found, code);
    }
  }
}

/// The grid leads to the same code: of edges, of their neighbours, and of what is far beyond them.
TEST(NearestPoints, GridFindsTheCellOfEveryEdge) {
  for (const unsigned bits : {4U, 5U, 6U}) {
    const Cells cells(bits, 0.25F);
    const NearestPoints points = cells.made();
    ASSERT_TRUE(points.has_grid());
    std::vector<float> values = {-1e30F, -9.0F, 0.0F, 9.0F, 1e30F};
    for (const float edge : cells.edges) {
      values.insert(values.end(), {std::nextafter(edge, -10.0F), edge, std::nextafter(edge, 10.0F)});
    }
    for (const float z : values) {
      const float inside = std::copysign(std::min(std::abs(z), points.grid_limit()), z);
      const float cell = std::fma(inside, points.grid_scale(), NearestPoints::kGridMiddle);
      const std::size_t first = points.grid()[static_cast<std::size_t>(cell)];
      const std::size_t code = first + (z >= points.edges()[first] ? 1 : 0);
      const auto below = std::count_if(cells.edges.begin(), cells.edges.end(), [z](float edge) { return edge <= z; });
      EXPECT_EQ(code, static_cast<std::size_t>(below)) << bits << " bits, " << z;
    }
  }
  EXPECT_FALSE(Cells(8).made().has_grid());
  const std::vector<float> two_in_a_cell = {-1.0F, 0.001F, 0.002F};
  EXPECT_FALSE(NearestPoints(two_in_a_cell, std::vector<float>{-2.0F, -0.5F, 0.0015F, 1.0F}).has_grid());
}

TEST_P(Nearest, ZeroAndNotFiniteBlocks) {
  const Case of{4, 3 * 512 + 100, 512};
  const RotationBlocks blocks = of.blocks();
  std::vector<float> gradient = normal_floats(of.size);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1e38F}) {
    gradient[700] = bad;
    std::fill_n(gradient.begin() + 1024, 512, 0.0F);
    std::fill_n(gradient.begin() + 1536, 100, 1e-33F);
    expect_same<Encoded>([&] { return encode(of, gradient, Cells(4)); });
    Ranks ranks(of, 3, {0, 2});
    std::vector<float> scales(blocks.blocks().size());
    Misaligned<std::uint8_t> codes(code_bytes(blocks.padded(), 4), 0);
    encode_nearest({gradient.data(), FloatFormat::kFp32}, blocks.blocks(), kKey, Hop::kUp, ranks.cells[1].made(),
                   codes.data(), scales.data());
    EXPECT_TRUE(scales[0] > 0 && std::isnan(scales[1]));
    EXPECT_EQ(std::vector<float>(scales.begin() + 2, scales.end()), std::vector<float>(scales.size() - 2, 0.0F));
    ranks.all[1] = {codes.data(), scales.data(), ranks.cells[1].points.data()};
    using Bytes = std::vector<std::uint8_t>;
    expect_same<Bytes>([&] { return decode(of, ranks); });
    expect_same<Encoded>([&] { return recode(of, ranks, 5); });
    const Bytes bytes = decode(of, ranks);
    std::vector<float> average(of.size);
    std::memcpy(average.data(), bytes.data(), bytes.size());
    for (std::size_t i = 0; i < 1536; ++i) {
      EXPECT_TRUE(i < 512 ? std::isfinite(average[i]) : i < 1024 ? std::isnan(average[i]) : average[i] == 0) << i;
      EXPECT_TRUE(i < 1024 || !std::signbit(average[i])) << i;
    }
  }
}

TEST_P(Nearest, ShardsAndThreadsGiveTheSameBits) {
  use_instruction_set(GetParam());
  const Case of{3, 700'001, 1024, {5, 5000, 300'000}};
  const RotationBlocks blocks = of.blocks();
  const std::vector<float> gradient = normal_floats(of.size);
  const auto [codes, scales] = encode(of, gradient, Cells(3));
  const Ranks ranks(of, 2);
  const auto averages = decode(of, ranks);
  const auto [down_codes, down_scales] = recode(of, ranks, 5);
  for (const unsigned threads : {1U, 2U, 5U}) {
    ThreadPool pool(threads);
    const std::size_t count = blocks.blocks().size();
    for (const auto& [begin, end] : {std::pair<std::size_t, std::size_t>{0, count}, {count / 3, count - 7}}) {
      const RotationBlocks part = blocks.part(begin, end);
      const RotationBlock& first = part.blocks()[0];
      std::vector<std::uint8_t> out(code_bytes(part.padded(), 3));
      std::vector<float> out_scales(end - begin);
      threaded::encode_nearest(&pool, {gradient.data() + first.coordinate, FloatFormat::kFp32}, part.blocks(), kKey,
                               Hop::kUp, Cells(3).made(), out.data(), out_scales.data());
      const auto part_of = [&](const auto& all, std::size_t from, std::size_t size) {
        return std::vector(all.begin() + static_cast<std::ptrdiff_t>(from),
                           all.begin() + static_cast<std::ptrdiff_t>(from + size));
      };
      EXPECT_EQ(out, part_of(codes, code_bytes(first.offset, 3), out.size()));
      EXPECT_EQ(bits_of(out_scales), part_of(scales, begin, end - begin));
      std::vector<NearestCodes> own = ranks.all;
      for (NearestCodes& rank : own) {
        rank.codes += code_bytes(first.offset, 3);
        rank.scales += begin;
      }
      std::vector<std::uint8_t> average(part.coordinates() * sizeof(float));
      threaded::decode_nearest(&pool, own, 3, part.blocks(), kKey, Hop::kUp, {average.data(), FloatFormat::kFp32});
      EXPECT_EQ(average, part_of(averages, first.coordinate * sizeof(float), average.size()));
      std::vector<std::uint8_t> again(code_bytes(part.padded(), 5));
      threaded::recode_nearest(&pool, own, 3, part.blocks(), kKey, Cells(5).made(), again.data(), out_scales.data());
      EXPECT_EQ(again, part_of(down_codes, code_bytes(first.offset, 5), again.size()));
      EXPECT_EQ(bits_of(out_scales), part_of(down_scales, begin, end - begin));
    }
  }
}

TEST(RotationBlocks, AreCutAtEveryEnd) {
  const std::vector<std::uint64_t> ends = {100, 250};
  const RotationBlocks rows(300, 8192, ends);
  const std::vector<RotationBlock> expected = {
      {0, 0, 128, 100}, {100, 128, 128, 128}, {228, 256, 32, 22}, {250, 288, 64, 50}};
  EXPECT_EQ(std::vector<RotationBlock>(rows.blocks().begin(), rows.blocks().end()), expected);
  EXPECT_EQ(rows.padded(), 352U);
  const RotationBlocks part = rows.part(1, 3);
  EXPECT_EQ(part.blocks()[0], expected[1]);
  EXPECT_EQ(part.coordinates(), 150U);
  EXPECT_EQ(part.padded(), 160U);
  EXPECT_EQ(RotationBlocks(8, 64).padded(), 16U);
  EXPECT_EQ(RotationBlocks(0, 64).blocks().size(), 0U);
  EXPECT_THROW(RotationBlocks(300, 8192, std::vector<std::uint64_t>{300}), ConfigurationError);
  EXPECT_THROW(RotationBlocks(300, 8192, std::vector<std::uint64_t>{20, 20}), ConfigurationError);
  EXPECT_THROW(RotationBlocks(300, 100), ConfigurationError);
  EXPECT_THROW(rows.part(3, 7), InputError);
}

/// Staggered points of few bits may have codes that do not point to the block: its scale would be enormous.
TEST(NearestScale, IsZeroIfCodesHardlyPointToTheBlock) {
  EXPECT_EQ(scale_of(2.0F, 1024 * 0x1p-12F, 1024), 2 * 0x1p+12F);
  EXPECT_EQ(scale_of(2.0F, 1024 * 0x1p-13F, 1024), 0.0F);
  EXPECT_EQ(scale_of(2.0F, -1.0F, 1024), 0.0F);
}

TEST(NearestPoints, WrongOnesAreRefused) {
  using Floats = std::vector<float>;
  EXPECT_THROW(NearestPoints(Floats{0}, Floats{1, 2, 3}), ConfigurationError);
  EXPECT_THROW(NearestPoints(Floats{0, 1}, Floats{1, 2}), ConfigurationError);
  EXPECT_THROW(NearestPoints(Floats{0}, Floats{2, 1}), ConfigurationError);
  EXPECT_THROW(NearestPoints(Floats{0, 0, 1}, Floats{1, 2, 3, 4}), ConfigurationError);
  EXPECT_THROW(NearestPoints(Floats{std::nanf("")}, Floats{1, 2}), ConfigurationError);
  EXPECT_NO_THROW(NearestPoints(Floats{0}, Floats{1, 2}));
}

}  // namespace
}  // namespace thc::testing
