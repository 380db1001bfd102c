// Which packets are in flight, in the order of their numbers, while slots are reused and freed in any order.
#include "session/slot_stream.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <utility>

#include "engine_fixture.h"

namespace thc::testing {
namespace {

constexpr std::uint32_t kFirstSlot = 2;
constexpr std::uint32_t kSlots = 5;

std::uint64_t number_of(const InFlight& packet) {
  return std::uint64_t{packet.round - 1} * kSlots + packet.slot - kFirstSlot;
}

TEST(SlotStream, VisitsPacketsInOrderOfTheirNumbers) {
  const SessionConfig config = resolve(test_config(4, 2), 65507);
  const Push push(0, 64 * 1000, config, 1);
  SlotStream stream(Stage::kCodes);
  stream.open(kFirstSlot, kSlots);
  stream.enqueue(push.operation, {});
  std::mt19937 random(1);
  std::set<std::uint64_t> in_flight;
  std::uint64_t next = 0;
  while (next < 1000 || !in_flight.empty()) {
    if (random() % 2 == 0) {
      if (InFlight* packet = stream.take_next(TimePoint{}); packet != nullptr) {
        EXPECT_EQ(number_of(*packet), next);
        in_flight.insert(next++);
      }
    } else if (!in_flight.empty()) {
      const std::uint64_t number = *std::next(in_flight.begin(), random() % in_flight.size());
      InFlight* packet = stream.find(kFirstSlot + static_cast<std::uint32_t>(number % kSlots));
      packet->operation().store_nothing(packet->chunk);
      stream.release(*packet);
      in_flight.erase(number);
    }
    std::vector<std::uint64_t> visited;
    stream.for_each_in_flight([&](const InFlight& packet) { visited.push_back(number_of(packet)); });
    ASSERT_EQ(visited, std::vector<std::uint64_t>(in_flight.begin(), in_flight.end()));
    ASSERT_EQ(stream.oldest() == nullptr, in_flight.empty());
    if (stream.oldest() != nullptr) {
      ASSERT_EQ(number_of(*stream.oldest()), *in_flight.begin());
    }
  }
}

TEST(SlotStream, VisitorsMayReleaseAndAbandonFreesEverything) {
  const SessionConfig config = resolve(test_config(4, 2), 65507);
  const Push push(0, 64 * 8, config, 1);
  SlotStream stream(Stage::kCodes);
  stream.for_each_in_flight([](InFlight&) { FAIL() << "not open yet"; });
  stream.open(kFirstSlot, kSlots);
  stream.enqueue(push.operation, {});
  while (stream.take_next(TimePoint{}) != nullptr) {
  }
  unsigned visited = 0;
  stream.for_each_in_flight([&](InFlight& packet) {
    ++visited;
    if (packet.chunk % 2 == 0) {
      packet.operation().store_nothing(packet.chunk);
      stream.release(packet);
    }
  });
  EXPECT_EQ(visited, kSlots);
  ASSERT_NE(stream.oldest(), nullptr);
  EXPECT_EQ(stream.oldest()->chunk, 1U);
  EXPECT_EQ(stream.abandon().size(), 1U);
  EXPECT_EQ(stream.oldest(), nullptr);
}

TEST(SlotStream, SendsPacketsOfAllOperationsInOrder) {
  const SessionConfig config = resolve(test_config(4, 2), 65507);
  for (const std::uint32_t slots : {1U, 2U, 5U, 12U, 64U}) {
    for (const bool open_first : {false, true}) {
      std::vector<std::unique_ptr<Push>> pushes;
      std::vector<std::pair<const Operation*, std::size_t>> expected;  // chunks
      SlotStream stream(Stage::kCodes);
      if (open_first) stream.open(kFirstSlot, slots);
      for (const std::size_t chunks : {1U, 7U, 1U, 40U, 2U, 3U}) {
        pushes.push_back(std::make_unique<Push>(std::uint16_t{0}, 64 * chunks, config, 1));
        stream.enqueue(pushes.back()->operation, {});
        for (std::size_t chunk = 0; chunk < chunks; ++chunk)
          expected.emplace_back(pushes.back()->operation.get(), chunk);
      }
      if (!open_first) stream.open(kFirstSlot, slots);
      std::vector<std::pair<const Operation*, std::size_t>> taken;
      while (InFlight* packet = stream.take_next(TimePoint{})) {
        EXPECT_EQ(std::size_t{packet->round - 1} * slots + packet->slot - kFirstSlot, taken.size());
        EXPECT_EQ(stream.find(packet->slot), packet);
        EXPECT_EQ(packet->operation().chunk_payload(packet->chunk).size() + sizeof(wire::Header), packet->bytes);
        taken.emplace_back(&packet->operation(), packet->chunk);
        stream.release(*packet);
      }
      EXPECT_EQ(taken, expected);
      EXPECT_EQ(stream.first(), nullptr) << "an operation without result";
    }
  }
}

TEST(SlotStream, FindsItsOwnSlotsOnly) {
  SlotStream stream(Stage::kCodes);
  EXPECT_EQ(stream.find(kFirstSlot), nullptr) << "not open yet";
  stream.open(kFirstSlot, kSlots);
  EXPECT_EQ(stream.find(kFirstSlot - 1), nullptr);
  EXPECT_NE(stream.find(kFirstSlot + kSlots - 1), nullptr);
  EXPECT_EQ(stream.find(kFirstSlot + kSlots), nullptr);
}

}  // namespace
}  // namespace thc::testing
