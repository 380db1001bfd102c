#include "thc/block_codes.h"

#include <algorithm>
#include <utility>

#include "csrc/kernel_fixture.h"
#include "thc/errors.h"
#include "thc/pack.h"

namespace thc::testing {
namespace {

using Bytes = std::vector<std::uint8_t>;
using Encoded = std::pair<Bytes, Bytes>;  // codes, scales

/// Blocks of tensors, one after the other with a gap of `gap` coordinates.
BlockTable table_of(const std::vector<std::size_t>& tensors, std::size_t gap = 0, std::uint32_t first = 0) {
  std::vector<std::uint64_t> words;
  std::size_t start = gap;
  for (const std::size_t size : tensors) {
    for (std::size_t i = 0; i < size; i += kBlock) words.push_back(Blocks::word(start + i, std::min(kBlock, size - i)));
    start += size + gap;
  }
  return BlockTable(std::move(words), first);
}

struct Case {
  unsigned bits;
  BlockTable table;
  std::size_t misalignment = 0;
  FloatFormat format = FloatFormat::kFp32;
};

std::vector<Case> cases(unsigned bits) {
  return {{bits, table_of({})},
          {bits, table_of({1})},
          {bits, table_of({64 * 16}), 1},
          {bits, table_of({64 * 40 + 7}, 0, 5), 3},
          {bits, table_of({100, 3000, 64, 1, 5000}, 13), 2},
          {bits, table_of({4096}), 0, FloatFormat::kBf16},
          {bits, table_of({1000, 9001}, 1), 1, FloatFormat::kFp16}};
}

Bytes as_format(const std::vector<float>& values, FloatFormat format) {
  Bytes bytes(values.size() * float_bytes(format));
  from_fp32(values.data(), values.size(), {bytes.data(), format});
  return bytes;
}

Encoded encode(const Case& of, const std::vector<float>& values, const BlockRandom& random) {
  const Blocks blocks = of.table.blocks();
  Misaligned<std::uint8_t> gradient(as_format(values, of.format), of.misalignment);
  Misaligned<std::uint8_t> codes(code_bytes(blocks.size() * kBlock, of.bits), of.misalignment);
  Misaligned<std::uint8_t> scales(scale_bytes(blocks.size()), of.misalignment);
  encode_blocks(nullptr, {gradient.data(), of.format}, blocks, random, of.bits, codes.data(), scales.data());
  return {codes.values(), scales.values()};
}

/// Messages of ranks with normal gradients.
struct Ranks {
  std::vector<Encoded> sent;
  std::vector<BlockCodes> all;

  Ranks(const Case& of, std::size_t count, const BlockRandom& random) {
    const Case plain{of.bits, of.table};
    for (std::size_t r = 0; r < count; ++r) {
      const auto seed = static_cast<std::uint32_t>(r) + 1;
      sent.push_back(encode(plain, normal_floats(of.table.blocks().end(), seed), random.of_rank(r, count)));
    }
    for (const auto& [codes, scales] : sent) all.push_back({codes.data(), scales.data()});
  }
};

const BlockRandom kUp(kKey, kSignDomain);
const BlockRandom kDown(kKey, kDownSignDomain);

/// Floats between blocks keep their bytes of 0x5a.
Bytes decode(const Case& of, const Ranks& ranks) {
  const Blocks blocks = of.table.blocks();
  Misaligned<std::uint8_t> out(Bytes(blocks.end() * float_bytes(of.format), 0x5a), of.misalignment);
  decode_blocks(nullptr, ranks.all, blocks, kUp, of.bits, {out.data(), of.format});
  return out.values();
}

Encoded recode(const Case& of, const Ranks& ranks, unsigned down_bits) {
  const Blocks blocks = of.table.blocks();
  Misaligned<std::uint8_t> codes(code_bytes(blocks.size() * kBlock, down_bits), of.misalignment);
  Misaligned<std::uint8_t> scales(scale_bytes(blocks.size()), of.misalignment);
  recode_blocks(nullptr, ranks.all, blocks, kUp, of.bits, kDown, down_bits, codes.data(), scales.data());
  return {codes.values(), scales.values()};
}

class BlockCodesTest : public EveryInstructionSet {};
THC_INSTANTIATE_EVERY_INSTRUCTION_SET(BlockCodesTest);

TEST_P(BlockCodesTest, AllInstructionSetsHaveTheSameBits) {
  for (unsigned bits = 1; bits <= kMaxBlockBits; ++bits) {
    for (const Case& of : cases(bits)) {
      SCOPED_TRACE(std::to_string(bits) + " bits, " + std::to_string(of.table.blocks().size()) + " blocks");
      expect_same<Encoded>([&] { return encode(of, normal_floats(of.table.blocks().end()), kUp.of_rank(2, 3)); });
      for (const std::size_t count : {1UL, 2UL, 5UL}) {
        const Ranks ranks(of, count, kUp);
        expect_same<Bytes>([&] { return decode(of, ranks); });
        expect_same<Encoded>([&] { return recode(of, ranks, 1 + (bits + 2) % 8); });
      }
    }
  }
}

/// Scales beyond 14 powers of two below the tile's largest are the least one, or zero: as often as is right on average.
TEST_P(BlockCodesTest, SmallBlocksBesideLargeOnesArriveOnAverage) {
  use_instruction_set(GetParam());
  const Case of{4, table_of({64 * 2})};
  std::vector<float> gradient(64 * 2, 1.0F);
  std::fill_n(gradient.begin() + 64, 64, 0x1p-18F);
  double sum = 0;
  constexpr std::uint32_t kRounds = 4000;
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    const BlockRandom random({kKey.seed, kKey.tensor, round}, kSignDomain);
    const Encoded sent = encode(of, gradient, random);
    std::vector<float> out(64 * 2);
    const BlockCodes rank{sent.first.data(), sent.second.data()};
    decode_blocks(nullptr, {&rank, 1}, of.table.blocks(), random, 4, {out.data(), FloatFormat::kFp32});
    for (std::size_t i = 64; i < 128; ++i) sum += out[i];
  }
  EXPECT_NEAR(sum / (64 * kRounds) * 0x1p18, 1, 0.1);
}

/// For the second half of the blocks.
void expect_shards_and_threads_have_the_same_bits(unsigned bits, unsigned down_bits) {
  const Case of{bits, table_of({5, 5000, 700'001}, 3)};
  const std::size_t count = of.table.blocks().size();
  const std::vector<float> gradient = normal_floats(of.table.blocks().end());
  const auto [codes, scales] = encode(of, gradient, kUp);
  const Ranks ranks(of, 2, kUp);
  const Bytes averages = decode(of, ranks);
  const auto [down_codes, down_scales] = recode(of, ranks, down_bits);
  const std::size_t begin = count / 32 * 16;  // scales of a shard begin with a tile
  const auto tail = [](const Bytes& all, std::size_t from) {
    return Bytes(all.begin() + static_cast<std::ptrdiff_t>(from), all.end());
  };
  for (const unsigned threads : {1U, 2U, 5U}) {
    ThreadPool pool(threads);
    const BlockTable part = of.table.part(begin, count);
    const Blocks blocks = part.blocks();
    Bytes out(code_bytes(blocks.size() * kBlock, bits));
    Bytes out_scales(scale_bytes(blocks.size()));
    encode_blocks(&pool, {gradient.data(), FloatFormat::kFp32}, blocks, kUp, bits, out.data(), out_scales.data());
    EXPECT_EQ(out, tail(codes, code_bytes(begin * kBlock, bits)));
    EXPECT_EQ(out_scales, tail(scales, scale_bytes(begin)));
    std::vector<BlockCodes> own = ranks.all;
    for (BlockCodes& rank : own) {
      rank.codes += code_bytes(begin * kBlock, bits);
      rank.scales += scale_bytes(begin);
    }
    Bytes average(averages.size(), 0x5a);
    const Floats out_floats{average.data(), FloatFormat::kFp32};
    const std::uint32_t sum = decode_blocks(&pool, own, blocks, kUp, bits, out_floats);
    EXPECT_EQ(sum, decode_blocks(nullptr, own, blocks, kUp, bits, out_floats));
    const std::size_t from = blocks.coordinate(0) * sizeof(float);
    EXPECT_EQ(tail(average, from), tail(averages, from));
    Bytes again(code_bytes(blocks.size() * kBlock, down_bits));
    recode_blocks(&pool, own, blocks, kUp, bits, kDown, down_bits, again.data(), out_scales.data());
    EXPECT_EQ(again, tail(down_codes, code_bytes(begin * kBlock, down_bits)));
    EXPECT_EQ(out_scales, tail(down_scales, scale_bytes(begin)));
  }
}

TEST_P(BlockCodesTest, ShardsAndThreadsHaveTheSameBits) {
  use_instruction_set(GetParam());
  for (const unsigned bits : {1U, 3U, 4U, 6U, 8U}) {
    SCOPED_TRACE(std::to_string(bits) + " bits");
    expect_shards_and_threads_have_the_same_bits(bits, 1 + (bits + 1) % 8);
  }
}

TEST(BlockTable, KeepsNumbersAndRefusesWhatOverlaps) {
  const BlockTable table = table_of({100, 200}, 6, 40);
  const Blocks blocks = table.blocks();
  ASSERT_EQ(blocks.size(), 6U);
  EXPECT_EQ(blocks.coordinate(1), 70U);
  EXPECT_EQ(blocks.used(1), 36U);
  EXPECT_EQ(blocks.end(), 312U);
  const BlockTable part = table.part(2, 5);
  EXPECT_EQ(part.blocks().first, 42U);
  EXPECT_EQ(part.blocks().coordinate(0), 112U);
  const BlockTable other = table.numbered(7);
  EXPECT_EQ(other.blocks().first, 7U);
  EXPECT_TRUE(other.shares_words(table));
  EXPECT_FALSE(part.shares_words(table));
  EXPECT_FALSE(table_of({100, 200}, 6, 40).shares_words(table));
  EXPECT_THROW(table.part(3, 7), InputError);
  EXPECT_THROW(table.part(3, 2), InputError);
  EXPECT_THROW(BlockTable({Blocks::word(0, 64), Blocks::word(63, 1)}), InputError);
  EXPECT_THROW(BlockTable({Blocks::word(0, 65)}), InputError);
  EXPECT_NO_THROW(BlockTable({Blocks::word(0, 0), Blocks::word(0, 64)}));
}

}  // namespace
}  // namespace thc::testing
