// Which packets are in flight, in the order of their numbers, while slots are reused and freed in any order.
#include "session/slot_stream.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <tuple>

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

/// Everything that this thread sends when results come at once, by packet number.
void take_all(SlotStream& stream, std::map<std::uint64_t, const Operation*>& taken, std::uint32_t slots) {
  while (InFlight* packet = stream.take_next(TimePoint{})) {
    const std::uint64_t number = std::uint64_t{packet->round - 1} * slots + packet->slot - kFirstSlot;
    EXPECT_TRUE(taken.emplace(number, &packet->operation()).second) << "packet " << number << " is sent twice";
    EXPECT_EQ(stream.find(packet->slot), packet);
    EXPECT_EQ(packet->operation().chunk_payload(packet->chunk).size() + sizeof(wire::Header), packet->bytes);
    stream.release(*packet);
  }
}

class SharedStream : public ::testing::TestWithParam<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>> {};

TEST_P(SharedStream, EachPacketIsSentByTheThreadOfItsShard) {
  const auto [threads, shards, slots] = GetParam();
  const SessionConfig config = resolve(test_config(4, 2), 65507);
  std::vector<std::unique_ptr<Push>> pushes;
  std::map<std::uint64_t, const Operation*> expected;
  for (const std::size_t chunks : {1U, 7U, 1U, 40U, 2U, 3U}) {
    pushes.push_back(std::make_unique<Push>(std::uint16_t{0}, 64 * chunks, config, 1));
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
      expected.emplace(expected.size(), pushes.back()->operation.get());
    }
  }
  for (const bool open_first : {false, true}) {
    std::map<std::uint64_t, const Operation*> taken;
    for (std::uint32_t thread = 0; thread < threads; ++thread) {
      const SlotShare share{.thread = thread, .threads = threads, .shards = shards};
      SlotStream stream(Stage::kCodes);
      std::size_t idle = 0;
      if (open_first) {
        stream.open(kFirstSlot, slots, share);
      }
      for (const auto& push : pushes) {
        idle += stream.enqueue(push->operation, {}) != nullptr ? 1 : 0;
      }
      if (!open_first) {
        idle = stream.open(kFirstSlot, slots, share).size();
      }
      std::map<std::uint64_t, const Operation*> own;
      take_all(stream, own, slots);
      EXPECT_EQ(stream.first(), nullptr) << "a part without result";
      std::set<const Operation*> with_packets;
      for (const auto& [number, operation] : own) {
        EXPECT_EQ((kFirstSlot + number % slots) % shards % threads, thread);
        with_packets.insert(operation);
      }
      EXPECT_EQ(with_packets.size() + idle, pushes.size());
      taken.merge(own);
      EXPECT_TRUE(own.empty()) << "sent by two threads";
    }
    EXPECT_EQ(taken, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(AllShares, SharedStream,
                         ::testing::Combine(::testing::Values(1U, 2U, 3U, 5U), ::testing::Values(1U, 2U, 3U, 4U, 16U),
                                            ::testing::Values(1U, 2U, 5U, 12U, 64U)));

TEST(SlotStream, OnlyTheThreadOfTheLastPacketPads) {
  const SessionConfig config = resolve(test_config(4, 2), 65507);
  const Push push(0, 64 * 3 + 1, config, 1);
  for (const std::uint32_t thread : {0U, 1U}) {
    SlotStream stream(Stage::kCodes);
    stream.open(kFirstSlot, 4, {.thread = thread, .threads = 2, .shards = 2}, 64);
    stream.enqueue(push.operation, {});
    EXPECT_EQ(push.operation->chunk_count(3), thread == 0 ? 1U : 64U);  // packet 3 is in slot 5
  }
}

}  // namespace
}  // namespace thc::testing
