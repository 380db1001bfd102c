#include <gtest/gtest.h>

#include <vector>

#include "csrc/use_instruction_set.h"
#include "thc/block_layout.h"
#include "thc/errors.h"
#include "thc/lookup_table.h"

namespace thc {
namespace {

std::vector<std::size_t> sizes_of(const BlockLayout& layout) {
  std::vector<std::size_t> sizes;
  for (std::size_t i = 0; i < layout.blocks(); ++i) sizes.push_back(layout.size(i));
  return sizes;
}

TEST(BlockLayout, BeginsAnewBehindEnds) {
  const std::vector<std::size_t> ends = {1280, 8448, 16640};
  const BlockLayout layout(21000, 8192, ends);
  EXPECT_EQ(sizes_of(layout), (std::vector<std::size_t>{1024, 256, 4096, 2048, 1024, 8192, 4096, 256, 64}));
  EXPECT_EQ(layout.offset(layout.blocks()), layout.padded());
  EXPECT_EQ(layout.block_from(0), 0U);
  EXPECT_EQ(layout.block_from(1280), 2U);
  EXPECT_EQ(layout.block_from(1281), 3U);
  EXPECT_EQ(layout.block_from(21000), layout.blocks());
  const BlockLayout part = layout.part(2, 6);
  EXPECT_EQ(sizes_of(part), (std::vector<std::size_t>{4096, 2048, 1024, 8192}));
  EXPECT_EQ(part.coordinates(), 15360U);
  EXPECT_EQ(layout.part(7, 9).coordinates(), 21000U - 20736U);
}

TEST(BlockLayout, RefusesOddBlocks) {
  for (const std::size_t rotation_block : {0UL, 32UL, 100UL, 2097152UL}) {
    EXPECT_THROW(BlockLayout(10, rotation_block), ConfigurationError);
  }
}

TEST(LookupTable, RefusesTablesThatAreNotIncreasing) {
  const std::vector<std::uint16_t> good = {0, 1, 3, 4};
  EXPECT_EQ(LookupTable(2, good).granularity(), 4);
  EXPECT_THROW(LookupTable(2, std::vector<std::uint16_t>{0, 1, 1, 4}), ConfigurationError);
  EXPECT_THROW(LookupTable(2, std::vector<std::uint16_t>{1, 2, 3, 4}), ConfigurationError);
  EXPECT_THROW(LookupTable(2, std::vector<std::uint16_t>{0, 1, 4}), ConfigurationError);
  EXPECT_THROW(LookupTable(5, good), ConfigurationError);
  EXPECT_THROW(LookupTable(2, std::vector<std::uint16_t>{0, 0, 0, 0}), ConfigurationError);
}

TEST(LookupTable, MayLeaveCodesOver) {
  const LookupTable table(2, std::vector<std::uint16_t>{0, 1, 2, 2});
  EXPECT_EQ(table.granularity(), 2);
  EXPECT_EQ(table.levels(), 3U);
  EXPECT_EQ(LookupTable(2, std::vector<std::uint16_t>{0, 1, 1, 1}).levels(), 2U);
  EXPECT_EQ(LookupTable(2, std::vector<std::uint16_t>{0, 1, 2, 3}).levels(), 4U);
  EXPECT_THROW(LookupTable(2, std::vector<std::uint16_t>{0, 2, 2, 2}), ConfigurationError);
  EXPECT_THROW(LookupTable(2, std::vector<std::uint16_t>{0, 3, 2, 2}), ConfigurationError);
  EXPECT_THROW(LookupTable(2, std::vector<std::uint16_t>{0, 1, 0, 1}), ConfigurationError);
}

TEST(LookupTable, ValueBitsHoldTheSumOfAllWorkers) {
  const LookupTable table(1, std::vector<std::uint16_t>{0, 30});
  EXPECT_EQ(table.value_bits_for(8), 8U);
  EXPECT_EQ(table.value_bits_for(9), 16U);
  EXPECT_THROW(static_cast<void>(table.value_bits_for(2185)), ConfigurationError);
}

TEST(LookupTable, HashTellsTablesApart) {
  const LookupTable one(1, std::vector<std::uint16_t>{0, 30});
  const LookupTable other(1, std::vector<std::uint16_t>{0, 31});
  EXPECT_EQ(one.hash(), LookupTable(1, std::vector<std::uint16_t>{0, 30}).hash());
  EXPECT_NE(one.hash(), other.hash());
}

TEST(InstructionSet, UnknownNamesAreRefused) {
  EXPECT_FALSE(instruction_sets().empty());
  EXPECT_THROW(testing::use_instruction_set("mmx"), ConfigurationError);
  testing::use_instruction_set(instruction_sets().back());
  testing::use_instruction_set(std::nullopt);
}

}  // namespace
}  // namespace thc
