// The table of MAC addresses when more neighbours appear than it holds.
#include "io/neighbour_table.h"

#include <gtest/gtest.h>

namespace thc::io::test {
namespace {

constexpr std::uint32_t kWorkers = 0x0a000001;    // 10.0.0.1 and up
constexpr std::uint32_t kStrangers = 0x0a800001;  // 10.128.0.1 and up
constexpr std::uint32_t kMany = 100'000;

TEST(NeighbourTableTest, FindsWhatWasAdded) {
  NeighbourTable table;
  EXPECT_EQ(table.find(kWorkers), nullptr);
  Neighbour* added = table.find_or_add(kWorkers);
  ASSERT_NE(added, nullptr);
  EXPECT_EQ(added->ip, kWorkers);
  EXPECT_EQ(table.find(kWorkers), added);
  EXPECT_EQ(table.find_or_add(kWorkers), added);
  EXPECT_EQ(table.find(0), nullptr);
  EXPECT_EQ(table.find_or_add(0), nullptr);
}

TEST(NeighbourTableTest, ANetworkOf254ConfiguredNeighboursFitsAndStays) {
  NeighbourTable table;
  for (std::uint32_t i = 0; i < 254; ++i) {
    Neighbour* entry = table.find_or_add(kWorkers + i);
    ASSERT_NE(entry, nullptr) << i;
    entry->fixed = true;
  }
  for (std::uint32_t i = 0; i < kMany; ++i) table.find_or_add(kStrangers + i);
  for (std::uint32_t i = 0; i < 254; ++i) {
    ASSERT_NE(table.find(kWorkers + i), nullptr) << i;
    EXPECT_TRUE(table.find(kWorkers + i)->fixed);
  }
}

TEST(NeighbourTableTest, StrangersFindRoomAndDisplaceNobodyWhoTalks) {
  NeighbourTable table;
  constexpr std::uint32_t kTalking = 64;
  for (std::uint32_t i = 0; i < kMany; ++i) {
    ASSERT_NE(table.find_or_add(kStrangers + i), nullptr);
    if (i % 16 == 0) {
      for (std::uint32_t worker = 0; worker < kTalking; ++worker) {
        Neighbour* entry = i == 0 ? table.find_or_add(kWorkers + worker) : table.find(kWorkers + worker);
        ASSERT_NE(entry, nullptr) << "worker " << worker << " after " << i << " strangers";
        ASSERT_EQ(entry->ip, kWorkers + worker);
      }
    }
  }
  EXPECT_EQ(table.find(kStrangers), nullptr) << "the first stranger made room";
}

}  // namespace
}  // namespace thc::io::test
