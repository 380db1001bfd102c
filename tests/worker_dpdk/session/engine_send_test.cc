// Sending packets, and sending them again.
#include <gtest/gtest.h>

#include <limits>

#include "one_engine.h"

namespace thc::testing {
namespace {

TEST_F(EngineTest, PadsTheLastPacketAndDropsThePaddingOfTheResult) {
  constexpr std::size_t kCount = 256 + 3;
  SessionConfig settings = test_config(3, 2);
  settings.codes_per_packet = 256;
  say_hello(resolve(settings, 65507));
  packet_io.take_sent();
  const std::vector<std::uint8_t> codes((kCount * 3 + 7) / 8, 0xff);
  std::vector<std::uint8_t> aggregate(kCount + 128, 0xcc);  // longer than needed, so that padding would show
  std::vector<std::uint8_t> contributions(2);
  const auto code_stage = Operation::codes(3, codes.data(), kCount, aggregate.data(), contributions.data(), *config);
  const std::vector<float> norms{1, 2, 3};
  std::vector<float> max_norms(norms.size());
  const auto norm_stage = Operation::norms(3, norms, max_norms, 64);

  engine->submit(code_stage, now);  // before and after the server has told its multiple
  arrive(welcome(0, 1, 10, 5, 128));
  submit(norm_stage);
  const auto packets = packet_io.take_sent();
  ASSERT_EQ(packets.size(), 3U);
  EXPECT_EQ(header_of(packets[0]).payload_count, 256U);
  EXPECT_EQ(header_of(packets[1]).payload_count, 128U);
  Datagram expected(128 * 3 / 8);
  expected[0] = 0xff;
  expected[1] = 0x80;  // nine bits are three codes
  EXPECT_EQ(Datagram(packets[1].begin() + sizeof(wire::Header), packets[1].end()), expected);
  EXPECT_EQ(header_of(packets[2]).payload_count, 32U);
  EXPECT_EQ(packets[2].size(), sizeof(wire::Header) + 32 * sizeof(float));

  arrive(aggregate_of(packets[0], 5));
  arrive(aggregate_of(packets[1], 7));
  ASSERT_TRUE(code_stage->done());
  std::vector<std::uint8_t> result(256, 5);
  result.insert(result.end(), 3, 7);
  result.insert(result.end(), 128, 0xcc);
  EXPECT_EQ(aggregate, result);
}

TEST_F(EngineTest, NormsHaveNoSignBitInEitherDirection) {
  join(two_workers());
  const std::vector<float> norms{-0.0F, 1, -std::numeric_limits<float>::quiet_NaN()};
  std::vector<float> max_norms(norms.size());
  const auto norm_stage = Operation::norms(3, norms, max_norms, 16);
  submit(norm_stage);
  Datagram packet = packet_io.take_sent().at(0);
  for (std::size_t i = sizeof(wire::Header); i < packet.size(); i += 4) EXPECT_LT(packet[i], 0x80);
  wire::Header header = header_of(packet);
  header.message_type = static_cast<std::uint8_t>(MessageType::kMaxNorm);
  header.contributions = config->num_workers;
  std::memcpy(packet.data(), &header, sizeof(header));
  Datagram poisoned = packet;
  poisoned[sizeof(header) + 4] |= 0x80;
  arrive(poisoned);
  EXPECT_FALSE(norm_stage->done());
  EXPECT_EQ(count(Count::kMalformed), 1U);
  arrive(packet);
  EXPECT_TRUE(norm_stage->done());
  EXPECT_EQ(max_norms[1], 1.0F);
}

TEST_F(EngineTest, NumbersPacketsBySlotAndRound) {
  // 8 CODES slots, the first after 2 NORM slots: 8 packets fly, the ninth waits for its slot.
  const auto packets = join_and_push(two_workers(), 64 * 20);
  ASSERT_EQ(packets.size(), 8U);
  for (std::uint32_t i = 0; i < 8; ++i) {
    const wire::Header header = header_of(packets[i]);
    EXPECT_EQ(header.slot, 2 + i);
    EXPECT_EQ(header.round, 1U);
    EXPECT_EQ(header.chunk, i);
    EXPECT_EQ(header.partition, 3U);
    EXPECT_EQ(header.payload_count, 64U);
    EXPECT_EQ(header.epoch, 5U);
    EXPECT_EQ(header.flags, 0U);
  }
  arrive(aggregate_of(packets[1], 1));  // slot 3 is free, but packet 8 wants slot 2
  EXPECT_TRUE(packet_io.take_sent().empty());
  arrive(aggregate_of(packets[0], 1));
  const auto next = packet_io.take_sent();
  ASSERT_EQ(next.size(), 2U);
  EXPECT_EQ(header_of(next[0]).slot, 2U);
  EXPECT_EQ(header_of(next[0]).round, 2U);
  EXPECT_EQ(header_of(next[0]).chunk, 8U);
}

TEST_F(EngineTest, KeepsToTheWindow) {
  window_bytes = 3 * (32 + 32) + 1;  // three packets of 64 4-bit codes
  EXPECT_EQ(join_and_push(two_workers(), 64 * 20).size(), 3U);
}

/// Another worker may need these norms before it sends the codes that ours wait for.
TEST_F(EngineTest, AFullWindowOfOneStageLetsAPacketOfTheOtherGo) {
  window_bytes = 3 * (32 + 32) + 1;
  ASSERT_EQ(join_and_push(two_workers(), 64 * 20).size(), 3U);
  const std::vector<float> norms(32, 1.0F);
  std::vector<float> max_norms(norms.size());
  const auto norm_stage = Operation::norms(3, norms, max_norms, 16);  // two packets
  submit(norm_stage);
  const auto sent = packet_io.take_sent();
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(type_of(sent[0]), MessageType::kNorm);
}

TEST_F(EngineTest, RepeatsAPacketAsItselfWithBackOff) {
  const auto packets = join_and_push(two_workers(), 64 * 2);
  arrive(aggregate_of(packets[0], 1));
  std::vector<TimePoint> times;
  while (times.size() < 4) {
    pass(Duration(1'000));
    for (const Datagram& again : packet_io.take_sent()) {
      times.push_back(now);
      wire::Header header = header_of(again);
      EXPECT_EQ(header.flags, wire::kFlagRetransmit);
      header.flags = 0;
      Datagram plain = again;
      std::memcpy(plain.data(), &header, sizeof(header));
      EXPECT_EQ(plain, packets[1]);
    }
  }
  EXPECT_GE(times[2] - times[1], 2 * (times[1] - times[0]) - Duration(1'000));
  EXPECT_GE(times[3] - times[2], 2 * (times[2] - times[1]) - Duration(1'000));
  arrive(aggregate_of(packets[1], 2));
  EXPECT_TRUE(push->operation->done());
  EXPECT_EQ(push->aggregate[63], 1U);
  EXPECT_EQ(push->aggregate[64], 2U);
  EXPECT_EQ(push->contributions, std::vector<std::uint8_t>({2, 2}));
}

TEST_F(EngineTest, ThreeLaterResultsAreASignOfLoss) {
  const auto packets = join_and_push(two_workers(), 64 * 5);
  arrive(aggregate_of(packets[1], 1));
  arrive(aggregate_of(packets[2], 1));
  EXPECT_TRUE(packet_io.take_sent().empty());
  arrive(aggregate_of(packets[3], 1));
  const auto again = packet_io.take_sent();
  ASSERT_EQ(again.size(), 1U);
  EXPECT_EQ(header_of(again[0]).slot, header_of(packets[0]).slot);
  EXPECT_EQ(header_of(again[0]).flags, wire::kFlagRetransmit);
}

TEST_F(EngineTest, OneLaterResultIsASignOfLossAfterARoundTrip) {
  const auto packets = join_and_push(two_workers(), 64 * 2);
  pass(Duration(4'000));
  arrive(aggregate_of(packets[1], 1));  // a round trip of 4 ms; four and a half are over at 4.5
  EXPECT_LE(engine->next_timer(), now + Duration(500));
  pass(Duration(500));
  const auto again = packet_io.take_sent();
  ASSERT_EQ(again.size(), 1U);
  EXPECT_EQ(header_of(again[0]).slot, header_of(packets[0]).slot);
}

TEST_F(EngineTest, ALatePacketMakesPatient) {
  const auto packets = join_and_push(two_workers(), 64 * 8);
  pass(Duration(2'000));
  for (const std::size_t answered : {1U, 2U, 3U}) arrive(aggregate_of(packets[answered], 1));
  EXPECT_EQ(packet_io.take_sent().size(), 1U);
  arrive(aggregate_of(packets[0], 1));  // sooner than a round trip after it was repeated: it was not lost
  for (const std::size_t answered : {5U, 6U, 7U}) arrive(aggregate_of(packets[answered], 1));
  EXPECT_TRUE(packet_io.take_sent().empty());
  arrive(aggregate_of(packets[4], 1));
  EXPECT_TRUE(push->operation->done());
  EXPECT_EQ(count(Count::kRetransmissions), 1U);
}

TEST_F(EngineTest, WhatHasArrivedWaitsForOthersBeforeItIsRepeated) {
  const auto packets = join_and_push(two_workers(), 64 * 7);
  for (const std::size_t answered : {1U, 2U, 3U}) arrive(aggregate_of(packets[answered], 1));
  const auto again = packet_io.take_sent();
  ASSERT_EQ(again.size(), 1U);
  arrive(error(header_of(again[0]), ErrorReason::kIncomplete, 0b01));
  for (const std::size_t answered : {4U, 5U, 6U}) {  // sent before the server said so
    arrive(aggregate_of(packets[answered], 1));
  }
  EXPECT_TRUE(packet_io.take_sent().empty());
  EXPECT_EQ(count(Count::kRetransmissions), 1U);
}

// The newest packet's result tells losses; if the packet waits for others, they may wait for the oldest.
TEST_F(EngineTest, AProbeIsOfTheNewestAndTheOldestPacket) {
  const auto packets = join_and_push(two_workers(), 64 * 5);
  pass(Duration(20'000));
  const auto probes = packet_io.take_sent();
  ASSERT_EQ(probes.size(), 2U);
  EXPECT_EQ(header_of(probes[0]).slot, header_of(packets[4]).slot);
  EXPECT_EQ(header_of(probes[1]).slot, header_of(packets[0]).slot);
  arrive(aggregate_of(probes[0], 1));
  std::size_t again = packet_io.take_sent().size();
  EXPECT_EQ(again, 2U);  // a burst after losses
  pass(Duration(10'000));
  again += packet_io.take_sent().size();
  EXPECT_EQ(again, 3U);  // all that were sent before it
}

TEST_F(EngineTest, SendsAgainSoonWhatTheBackEndRefused) {
  join(two_workers());
  packet_io.refuse_sends = 1;
  push = std::make_unique<Push>(std::uint16_t{0}, 64, *config, 1);
  submit(push->operation);
  EXPECT_TRUE(packet_io.take_sent().empty());
  EXPECT_LE(engine->next_timer(), now + Duration(1'000));
  pass(Duration(1'000));
  EXPECT_EQ(packet_io.take_sent().size(), 1U);
}

TEST_F(EngineTest, WaitingForPeersSlowsRepetitionDown) {
  const auto packets = join_and_push(two_workers(), 64);
  std::size_t repeated = 0;
  for (int ms = 0; ms < 2'000; ++ms) {
    pass(Duration(1'000));
    for (const Datagram& again : packet_io.take_sent()) {
      ++repeated;
      arrive(error(header_of(again), ErrorReason::kIncomplete, 0b01));
    }
  }
  EXPECT_GE(repeated, 5U);
  EXPECT_LE(repeated, 20U);
}

}  // namespace
}  // namespace thc::testing
