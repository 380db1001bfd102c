// Which packets are in flight, in the order of their numbers, while slots are reused and freed in any order.
#include "session/slot_stream.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

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
  stream.open(kFirstSlot, kSlots, {});
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
  stream.open(kFirstSlot, kSlots, {});
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

}  // namespace
}  // namespace thc::testing
