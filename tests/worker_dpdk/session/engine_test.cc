// The protocol, step by step: what a worker sends, takes and refuses.
#include <gtest/gtest.h>

#include <limits>

#include "engine_fixture.h"
#include "io/address.h"
#include "session/session_engine.h"

namespace thc::testing {
namespace {

using wire::ErrorReason;
using wire::MessageType;

MessageType type_of(const Datagram& datagram) {
  return static_cast<MessageType>(std::uint8_t{header_of(datagram).message_type});
}

constexpr io::Endpoint kOther{kServer.ip + 1, kServer.port};  // another server

/// One worker of two, so that the test plays the server and nothing completes by itself.
class EngineTest : public ::testing::Test {
 protected:
  static SessionConfig two_workers() { return resolve(test_config(4, 2), 65507); }

  void start(const SessionConfig& resolved) {
    config = std::make_unique<SessionConfig>(resolved);
    group = std::make_unique<EngineGroup>(resolved.servers.size(), 1);
    engine = std::make_unique<SessionEngine>(resolved, packet_io, *group, 0, 99, now);
  }
  void arrive(const Datagram& datagram, io::Endpoint from = kServer) {
    packet_io.arriving.push_back({from, datagram});
    engine->step(now);
  }
  void pass(Duration time) {
    now += time;
    engine->step(now);
  }
  Datagram welcome(std::uint32_t shard, std::uint16_t shards = 1, std::uint32_t slots = 10, std::uint32_t epoch = 5,
                   std::uint16_t codes_multiple = 1) {
    wire::Header header = make_header(MessageType::kWelcome, *config);
    header.slot = shard;
    header.epoch = epoch;
    header.round = 99;  // the engine's nonce
    wire::WelcomePayload payload{};
    payload.slots = slots;
    payload.norm_slots = 2;
    payload.window_bytes = window_bytes;
    payload.shards = shards;
    payload.codes_multiple = codes_multiple;
    return make_datagram(header, payload);
  }
  static Datagram error(wire::Header header, ErrorReason reason, std::uint64_t bitmap = 0) {
    header.message_type = static_cast<std::uint8_t>(MessageType::kError);
    wire::ErrorPayload payload{};
    payload.reason = static_cast<std::uint16_t>(reason);
    payload.worker_bitmap = bitmap;
    return make_datagram(header, payload);
  }
  /// Worker 0 is seen, and the other one was not let in.
  static Datagram notice_of_refused_worker(const Datagram& about, wire::ConfigField field, std::uint32_t value) {
    wire::Header header = header_of(about);
    header.message_type = static_cast<std::uint8_t>(MessageType::kError);
    wire::ErrorPayload payload{};
    payload.reason = static_cast<std::uint16_t>(ErrorReason::kIncomplete);
    payload.worker_bitmap = std::uint64_t{1};
    payload.field = static_cast<std::uint16_t>(field);
    payload.job_value = value;
    return make_datagram(header, payload);
  }
  /// The answer to HELLO of a job with so many codes in a packet, and not this worker's number.
  Datagram packets_differ(std::uint32_t job_value) {
    wire::Header header = make_header(MessageType::kError, *config);
    header.round = 99;  // the engine's nonce
    wire::ErrorPayload payload{};
    payload.reason = static_cast<std::uint16_t>(ErrorReason::kConfigMismatch);
    payload.field = static_cast<std::uint16_t>(wire::ConfigField::kCodesPerPacket);
    payload.job_value = job_value;
    return make_datagram(header, payload);
  }
  /// The aggregate of a CODES packet with every coordinate `value`.
  Datagram aggregate_of(const Datagram& codes, std::uint8_t value) const {
    wire::Header header = header_of(codes);
    header.message_type = static_cast<std::uint8_t>(MessageType::kAggregate);
    header.flags = 0;
    header.contributions = config->num_workers;
    Datagram datagram(sizeof(header) + header.payload_count, value);
    std::memcpy(datagram.data(), &header, sizeof(header));
    return datagram;
  }
  void join(const SessionConfig& resolved) {
    start(resolved);
    engine->step(now);
    arrive(welcome(0));
    ASSERT_TRUE(engine->connected());
    packet_io.take_sent();
  }
  /// Joins and pushes `count` codes; returns the packets.
  std::vector<Datagram> join_and_push(const SessionConfig& resolved, std::size_t count) {
    join(resolved);
    push = std::make_unique<Push>(std::uint16_t{3}, count, *config, 1);
    engine->submit(push->operation, now);
    engine->step(now);
    return packet_io.take_sent();
  }
  std::uint64_t count(Count which) const { return engine->counters()[which]; }

  TimePoint now{std::chrono::hours(1)};
  std::uint32_t window_bytes = 1U << 20;  ///< of the server
  MemoryIo packet_io;
  std::unique_ptr<SessionConfig> config;
  std::unique_ptr<EngineGroup> group;
  std::unique_ptr<SessionEngine> engine;
  std::unique_ptr<Push> push;
};

TEST_F(EngineTest, SaysHelloToEveryShard) {
  start(two_workers());
  engine->step(now);
  const auto first = packet_io.take_sent();
  ASSERT_EQ(first.size(), 1U);
  EXPECT_EQ(type_of(first[0]), MessageType::kHello);
  EXPECT_EQ(header_of(first[0]).slot, 0U);
  EXPECT_EQ(first[0].size(), sizeof(wire::Header) + sizeof(wire::HelloPayload) + 16 * 2);

  arrive(welcome(0, 3));
  const auto others = packet_io.take_sent();
  ASSERT_EQ(others.size(), 2U);
  EXPECT_EQ(header_of(others[0]).slot, 1U);
  EXPECT_EQ(header_of(others[1]).slot, 2U);
  EXPECT_FALSE(engine->connected());
  EXPECT_EQ(packet_io.sent_to, shard_address(2));
  arrive(welcome(1, 3), shard_address(1));
  arrive(welcome(2, 3), shard_address(2));
  EXPECT_TRUE(engine->connected());
}

TEST_F(EngineTest, AShardSpeaksForItsSlotsOnly) {
  start(two_workers());
  engine->step(now);
  arrive(welcome(0, 3));
  packet_io.take_sent();
  arrive(welcome(1, 3), shard_address(2));
  arrive(welcome(1, 3), shard_address(0));
  EXPECT_EQ(count(Count::kMalformed), 2U);
  arrive(welcome(2, 3), shard_address(3));
  EXPECT_EQ(count(Count::kForeign), 1U);
  arrive(welcome(2, 3), shard_address(2));
  EXPECT_FALSE(engine->connected()) << "shard 1 has not answered";
  arrive(welcome(1, 3), shard_address(1));
  ASSERT_TRUE(engine->connected());
  push = std::make_unique<Push>(std::uint16_t{3}, std::size_t{256}, *config, 1);
  engine->submit(push->operation, now);
  engine->step(now);
  const auto sent = packet_io.take_sent();
  ASSERT_FALSE(sent.empty());
  EXPECT_EQ(packet_io.sent_to, shard_address(header_of(sent.back()).slot % 3));
}

TEST_F(EngineTest, PadsTheLastPacketAndDropsThePaddingOfTheResult) {
  constexpr std::size_t kCount = 256 + 3;
  SessionConfig settings = test_config(3, 2);
  settings.codes_per_packet = 256;
  start(resolve(settings, 65507));
  engine->step(now);
  packet_io.take_sent();
  const std::vector<std::uint8_t> codes((kCount * 3 + 7) / 8, 0xff);
  std::vector<std::uint8_t> aggregate(kCount + 128, 0xcc);  // longer than it need be, to see what is written there
  std::vector<std::uint8_t> contributions(2);
  const auto code_stage = Operation::codes(3, codes.data(), kCount, aggregate.data(), contributions.data(), *config);
  const std::vector<float> norms{1, 2, 3};
  std::vector<float> max_norms(norms.size());
  const auto norm_stage = Operation::norms(3, norms, max_norms, 64);

  engine->submit(code_stage, now);  // before and after the server has said what it takes
  arrive(welcome(0, 1, 10, 5, 128));
  engine->submit(norm_stage, now);
  engine->step(now);
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

TEST_F(EngineTest, IgnoresAWelcomeWithAnImpossibleMultiple) {
  start(two_workers());
  for (const std::uint16_t multiple : {0, 3, 96, 128}) {  // a packet has 64 codes
    arrive(welcome(0, 1, 10, 5, multiple));
    EXPECT_FALSE(engine->connected()) << multiple;
  }
  arrive(welcome(0, 1, 10, 5, 64));
  EXPECT_TRUE(engine->connected());
}

TEST_F(EngineTest, RepeatsHelloWithBackOffUntilTheConnectDeadline) {
  SessionConfig settings = two_workers();
  settings.connect_timeout = Duration(1'000'000);
  start(settings);
  for (int i = 0; i <= 1000; ++i) {
    engine->step(now);
    now += Duration(1'000);
  }
  EXPECT_EQ(packet_io.take_sent().size(), 6U);  // at 0, 20, 60, 140, 300 and 620 ms
  ASSERT_TRUE(engine->failure());
  EXPECT_EQ(engine->failure()->kind, Failure::Kind::kDeadline);
  EXPECT_NE(engine->failure()->message.find("10.0.0.1:48865"), std::string::npos);
}

TEST_F(EngineTest, NamesTheFieldAndBothValuesOfARefusedConfiguration) {
  start(two_workers());
  engine->step(now);
  wire::Header header = header_of(packet_io.take_sent()[0]);
  header.message_type = static_cast<std::uint8_t>(MessageType::kError);
  wire::ErrorPayload payload{};
  payload.reason = static_cast<std::uint16_t>(ErrorReason::kConfigMismatch);
  payload.field = static_cast<std::uint16_t>(wire::ConfigField::kNumWorkers);
  payload.job_value = std::uint32_t{4};
  arrive(make_datagram(header, payload));
  ASSERT_TRUE(engine->failure());
  EXPECT_EQ(engine->failure()->kind, Failure::Kind::kRefused);
  EXPECT_NE(engine->failure()->message.find("num_workers of worker 0 differs from the job's (this worker: 2, job: 4)"),
            std::string::npos)
      << engine->failure()->message;
}

TEST_F(EngineTest, ComesBackWithPacketsThatFitEthernetWhereTheServerTakesNoLargerOnes) {
  for (const unsigned value_bits : {8U, 16U}) {
    SessionConfig settings = test_config(4, 2, value_bits);
    settings.codes_per_packet = 2048;
    start(resolve(settings, 9000));
    engine->step(now);
    wire::Header header = header_of(packet_io.take_sent()[0]);
    header.message_type = static_cast<std::uint8_t>(MessageType::kError);
    wire::ErrorPayload payload{};
    payload.reason = static_cast<std::uint16_t>(ErrorReason::kBadConfig);
    payload.field = static_cast<std::uint16_t>(wire::ConfigField::kCodesPerPacket);
    arrive(make_datagram(header, payload));
    ASSERT_TRUE(engine->failure());
    EXPECT_EQ(engine->failure()->codes_per_packet, value_bits == 8 ? 1024U : 704U);
  }
}

/// Of two servers: the second one has taken this worker's packets, and the first one still has the job of before.
TEST_F(EngineTest, WaitsForOthersToLeaveTheJobOfLargerPackets) {
  SessionConfig settings = test_config(4, 2);
  settings.servers.push_back(kOther);
  settings.codes_per_packet = 1024;
  settings.others_follow = true;
  for (const bool they_leave : {true, false}) {
    start(resolve(settings, 65507));
    engine->step(now);
    const TimePoint started_at = now;
    arrive(welcome(0), kOther);
    const Datagram refused = packets_differ(8192);
    arrive(refused);
    std::size_t hellos = 0;
    while (!engine->failure() && now - started_at < Duration(9'000'000)) {
      now = engine->next_timer();
      engine->step(now);
      for (const Datagram& hello : packet_io.take_sent()) {
        ASSERT_EQ(type_of(hello), MessageType::kHello);
        ++hellos;
        arrive(refused);
      }
    }
    ASSERT_FALSE(engine->failure()) << engine->failure()->message;
    EXPECT_GE(hellos, 40U);
    if (they_leave) {
      arrive(welcome(0));
      EXPECT_TRUE(engine->connected());
      pass(Duration(5'000'000));
      EXPECT_FALSE(engine->failure());
    } else {
      now = started_at + settings.connect_timeout;
      engine->step(now);
      ASSERT_TRUE(engine->failure());
      EXPECT_EQ(engine->failure()->kind, Failure::Kind::kRefused);
      EXPECT_EQ(engine->failure()->codes_per_packet, 0U);
      EXPECT_NE(engine->failure()->message.find("(this worker: 1024, job: 8192)"), std::string::npos)
          << engine->failure()->message;
    }
    packet_io.take_sent();
  }
}

TEST_F(EngineTest, NobodyLeavesAJobForPacketsThatNoServerAsksFor) {
  SessionConfig own_size = test_config(4, 2);
  own_size.servers.push_back(kOther);
  own_size.codes_per_packet = 1024;
  SessionConfig one_server = test_config(4, 2);
  one_server.codes_per_packet = 1024;
  one_server.others_follow = true;
  for (const SessionConfig& settings : {own_size, one_server}) {
    start(resolve(settings, 65507));
    engine->step(now);
    arrive(packets_differ(8192));
    ASSERT_TRUE(engine->failure());
    EXPECT_EQ(engine->failure()->kind, Failure::Kind::kRefused);
    packet_io.take_sent();
  }
}

TEST_F(EngineTest, SaysHelloWithTheCookieAtOnce) {
  start(two_workers());
  engine->step(now);
  const Datagram hello = packet_io.take_sent()[0];
  const auto cookie_of = [](const Datagram& datagram) {
    wire::HelloPayload payload;
    std::memcpy(&payload, datagram.data() + sizeof(wire::Header), sizeof(payload));
    return std::uint64_t{payload.cookie};
  };
  EXPECT_EQ(cookie_of(hello), 0U);
  wire::Header header = header_of(hello);
  header.message_type = static_cast<std::uint8_t>(MessageType::kChallenge);
  wire::ChallengePayload payload{};
  payload.cookie = std::uint64_t{77};
  arrive(make_datagram(header, payload));
  auto sent = packet_io.take_sent();
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(cookie_of(sent[0]), 77U);
  EXPECT_EQ(sent[0].size(), hello.size());
  // A server that goes on asking is answered when HELLO is due, not once for each time it asks.
  for (int i = 0; i < 5; ++i) arrive(make_datagram(header, payload));
  EXPECT_TRUE(packet_io.take_sent().empty());
  pass(Duration(20'000));
  sent = packet_io.take_sent();
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(cookie_of(sent[0]), 77U);
  header.slot = std::uint32_t{5};  // no shard
  arrive(make_datagram(header, payload));
  arrive(welcome(0));
  EXPECT_TRUE(engine->connected());
  header.slot = std::uint32_t{0};
  arrive(make_datagram(header, payload));
  EXPECT_EQ(count(Count::kStale), 2U);
  EXPECT_TRUE(packet_io.take_sent().empty());
}

TEST_F(EngineTest, AnswersProbes) {
  join(two_workers());
  wire::Header header = make_header(MessageType::kProbe, *config);
  header.epoch = std::uint32_t{5};
  const Datagram probe(reinterpret_cast<const std::uint8_t*>(&header),
                       reinterpret_cast<const std::uint8_t*>(&header + 1));
  arrive(probe);
  const auto sent = packet_io.take_sent();
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(type_of(sent[0]), MessageType::kAlive);
  EXPECT_EQ(sent[0].size(), probe.size());
  EXPECT_EQ(header_of(sent[0]).epoch, 5U);
  EXPECT_EQ(header_of(sent[0]).worker_id, config->worker_id);
  header.epoch = std::uint32_t{6};  // that the server goes on in, which this process was not told yet
  arrive(Datagram(reinterpret_cast<const std::uint8_t*>(&header), reinterpret_cast<const std::uint8_t*>(&header + 1)));
  ASSERT_EQ(header_of(packet_io.take_sent().at(0)).epoch, 5U);
  arrive(probe, {kServer.ip, 1});
  EXPECT_TRUE(packet_io.take_sent().empty());
  EXPECT_EQ(count(Count::kForeign), 1U);
}

TEST_F(EngineTest, NormsHaveNoSignBitInEitherDirection) {
  join(two_workers());
  const std::vector<float> norms{-0.0F, 1, -std::numeric_limits<float>::quiet_NaN()};
  std::vector<float> max_norms(norms.size());
  const auto norm_stage = Operation::norms(3, norms, max_norms, 16);
  engine->submit(norm_stage, now);
  engine->step(now);
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
  engine->submit(norm_stage, now);
  engine->step(now);
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
  for (const std::size_t answered : {1U, 2U, 3U}) {
    arrive(aggregate_of(packets[answered], 1));
  }
  EXPECT_EQ(packet_io.take_sent().size(), 1U);
  arrive(aggregate_of(packets[0], 1));  // sooner than a round trip after it was repeated: it was not lost
  for (const std::size_t answered : {5U, 6U, 7U}) {
    arrive(aggregate_of(packets[answered], 1));
  }
  EXPECT_TRUE(packet_io.take_sent().empty());
  arrive(aggregate_of(packets[4], 1));
  EXPECT_TRUE(push->operation->done());
  EXPECT_EQ(count(Count::kRetransmissions), 1U);
}

TEST_F(EngineTest, WhatHasArrivedWaitsForOthersBeforeItIsRepeated) {
  const auto packets = join_and_push(two_workers(), 64 * 7);
  for (const std::size_t answered : {1U, 2U, 3U}) {
    arrive(aggregate_of(packets[answered], 1));
  }
  const auto again = packet_io.take_sent();
  ASSERT_EQ(again.size(), 1U);
  arrive(error(header_of(again[0]), ErrorReason::kIncomplete, 0b01));
  for (const std::size_t answered : {4U, 5U, 6U}) {  // sent before the server said so
    arrive(aggregate_of(packets[answered], 1));
  }
  EXPECT_TRUE(packet_io.take_sent().empty());
  EXPECT_EQ(count(Count::kRetransmissions), 1U);
}

// The newest one's result tells what is lost; if it waits for others, they may wait for the oldest.
TEST_F(EngineTest, AProbeIsOfTheNewestAndTheOldestPacket) {
  const auto packets = join_and_push(two_workers(), 64 * 5);
  pass(Duration(20'000));
  const auto probes = packet_io.take_sent();
  ASSERT_EQ(probes.size(), 2U);
  EXPECT_EQ(header_of(probes[0]).slot, header_of(packets[4]).slot);
  EXPECT_EQ(header_of(probes[1]).slot, header_of(packets[0]).slot);
  arrive(aggregate_of(probes[0], 1));
  EXPECT_EQ(packet_io.take_sent().size(), 3U);  // all that were sent before it
}

TEST_F(EngineTest, SendsAgainSoonWhatTheBackEndRefused) {
  join(two_workers());
  packet_io.refuse_sends = 1;
  push = std::make_unique<Push>(std::uint16_t{0}, 64, *config, 1);
  engine->submit(push->operation, now);
  engine->step(now);
  EXPECT_TRUE(packet_io.take_sent().empty());
  EXPECT_LE(engine->next_timer(), now + Duration(1'000));
  pass(Duration(1'000));
  EXPECT_EQ(packet_io.take_sent().size(), 1U);
}

TEST_F(EngineTest, DeadlineNamesSlotRoundAndMissingWorkers) {
  const auto packets = join_and_push(two_workers(), 64);
  pass(Duration(20'000));
  const auto again = packet_io.take_sent();
  ASSERT_EQ(again.size(), 1U);
  arrive(error(header_of(again[0]), ErrorReason::kIncomplete, 0b01));
  EXPECT_EQ(count(Count::kIncompleteReceived), 1U);
  pass(config->operation_timeout);
  ASSERT_TRUE(push->operation->done());
  ASSERT_TRUE(push->operation->failure());
  const Failure& failure = *push->operation->failure();
  EXPECT_EQ(failure.kind, Failure::Kind::kDeadline);
  EXPECT_EQ(failure.slot, 2U);
  EXPECT_EQ(failure.round, 1U);
  EXPECT_EQ(failure.missing_workers, 0b10U);
  EXPECT_NE(failure.message.find("missing worker 1"), std::string::npos) << failure.message;
  // The session is broken: what comes later ends at once with the same cause.
  Push later(1, 64, *config, 2);
  engine->submit(later.operation, now);
  engine->step(now);
  ASSERT_TRUE(later.operation->done());
  EXPECT_EQ(later.operation->failure()->message, failure.message);
}

TEST_F(EngineTest, DeadlineTellsThatAMissingWorkerWasRefused) {
  for (const auto& [field, hint] : {std::pair(wire::ConfigField::kCodesPerPacket, "(1024, here 64). \"auto\" is"),
                                    std::pair(wire::ConfigField::kTable, "differs in the lookup table")}) {
    const auto packets = join_and_push(two_workers(), 64);
    arrive(notice_of_refused_worker(packets[0], field, 1024));
    now += config->operation_timeout;
    arrive(notice_of_refused_worker(packets[0], field, 1024));
    ASSERT_TRUE(engine->failure());
    const std::string& message = engine->failure()->message;
    EXPECT_NE(message.find("missing worker 1; the server has refused one"), std::string::npos) << message;
    EXPECT_NE(message.find(hint), std::string::npos) << message;
  }
}

TEST_F(EngineTest, DeadlineTellsThatTheServerIsSilent) {
  join_and_push(two_workers(), 64);
  pass(config->operation_timeout);
  ASSERT_TRUE(engine->failure());
  EXPECT_NE(engine->failure()->message.find("the server does not answer"), std::string::npos);
}

// The server dies while worker 1 computes: what it said before is no reason to blame worker 1.
TEST_F(EngineTest, DeadlineBlamesAServerThatHasStoppedAnswering) {
  join_and_push(two_workers(), 64);
  pass(Duration(20'000));
  const auto again = packet_io.take_sent();
  ASSERT_EQ(again.size(), 1U);
  arrive(error(header_of(again[0]), ErrorReason::kIncomplete, 0b01));
  for (Duration passed{0}; passed < config->operation_timeout; passed += Duration(50'000)) {
    pass(Duration(50'000));
  }
  ASSERT_TRUE(engine->failure());
  const Failure& failure = *engine->failure();
  EXPECT_EQ(failure.kind, Failure::Kind::kDeadline);
  EXPECT_EQ(failure.missing_workers, 0U);
  EXPECT_NE(failure.message.find("the server has not answered for"), std::string::npos) << failure.message;
  EXPECT_NE(failure.message.find("before that it waited for worker 1"), std::string::npos) << failure.message;
}

// Results above an MTU get lost, or all that one port of several says. A notice is an answer: others are slow.
TEST_F(EngineTest, TellsHowLongAServerHasDeliveredNothing) {
  const auto pass_in_steps = [this](Duration time) {
    for (Duration passed{0}; passed < time; passed += Duration(50'000)) {
      pass(Duration(50'000));
    }
  };
  const auto packets = join_and_push(two_workers(), 64);
  pass(Duration(5'000'000));
  EXPECT_EQ(group->unanswered(0).for_ms, 0U) << "it was not sent again: this process did not run";
  pass_in_steps(Duration(3'000'000));
  EXPECT_GE(group->unanswered(0).for_ms, 7'500U);
  EXPECT_EQ(group->unanswered(0).port, kServer.port);
  arrive(error(header_of(packets[0]), ErrorReason::kIncomplete, 0b01));
  EXPECT_EQ(group->unanswered(0).for_ms, 0U);
  pass_in_steps(Duration(2'000'000));
  EXPECT_GE(group->unanswered(0).for_ms, 1'500U);
  EXPECT_LE(group->unanswered(0).for_ms, 2'000U);
  arrive(aggregate_of(packets[0], 1));
  EXPECT_EQ(group->unanswered(0).for_ms, 0U);
}

// On a way that loses much, a packet may be lost over and over while others have results: the server delivers.
TEST_F(EngineTest, AServerDeliversWhileAnyPacketHasAResult) {
  const auto packets = join_and_push(two_workers(), std::size_t{64} * 40);
  ASSERT_EQ(packets.size(), 8U);
  for (std::size_t i = 7; i > 0; --i) {
    for (int step = 0; step < 30; ++step) {
      pass(Duration(50'000));
    }
    EXPECT_LE(group->unanswered(0).for_ms, 1'500U);
    arrive(aggregate_of(packets[i], 1));
    EXPECT_EQ(group->heard_at(0), now);
  }
  for (int step = 0; step < 100; ++step) {
    pass(Duration(50'000));
  }
  EXPECT_GE(group->unanswered(0).for_ms, 2'000U) << "the first packet still has none";
  EXPECT_LT(group->heard_at(0), now - Duration(2'000'000));
}

TEST_F(EngineTest, DeadlineNamesTheServerThatAnswersHelloAndDeliversNothing) {
  join_and_push(two_workers(), 64);
  std::size_t questions = 0;
  for (Duration passed{0}; passed < config->operation_timeout; passed += Duration(50'000)) {
    pass(Duration(50'000));
    for (const Datagram& sent : packet_io.take_sent()) {
      if (type_of(sent) == MessageType::kHello) {
        ++questions;
        wire::Header header = header_of(sent);
        header.message_type = static_cast<std::uint8_t>(MessageType::kChallenge);
        arrive(make_datagram(header, wire::ChallengePayload{}));
      }
    }
  }
  EXPECT_GT(questions, 1U);
  EXPECT_LE(questions, static_cast<std::size_t>(config->operation_timeout / Duration(300'000)));
  ASSERT_TRUE(engine->failure());
  const std::string& message = engine->failure()->message;
  EXPECT_NE(message.find("the server answers, but " + io::to_string(kServer) + " has delivered nothing for"),
            std::string::npos)
      << message;
  EXPECT_NE(message.find("firewalls"), std::string::npos) << message;
  EXPECT_NE(message.find("MTU"), std::string::npos) << message;
}

// The switch of a rack passes a repetition on to its root, and has nothing to say about one that does not answer.
TEST_F(EngineTest, DeadlineOfASilentSwitchNamesTheRoot) {
  const std::string hint = "the root, the server above it, is silent: is thc-ps running where";
  join_and_push(two_workers(), 64);
  pass(config->operation_timeout);
  ASSERT_TRUE(engine->failure());
  EXPECT_EQ(engine->failure()->message.find(hint), std::string::npos) << "thc-ps says so itself";

  start(two_workers());
  engine->step(now);
  arrive(welcome(0, 1, 10, 5, 64));
  ASSERT_TRUE(engine->connected());
  push = std::make_unique<Push>(std::uint16_t{3}, 64, *config, 1);
  engine->submit(push->operation, now);
  engine->step(now);
  pass(config->operation_timeout);
  ASSERT_TRUE(engine->failure());
  EXPECT_NE(engine->failure()->message.find(hint), std::string::npos) << engine->failure()->message;
}

// As on a path whose middle has a smaller MTU than its ends: HELLO gets through, CODES do not.
TEST_F(EngineTest, DeadlineThinksOfThePacketSizeWhenOnlyCodesGetLost) {
  SessionConfig large = test_config(4, 2);
  large.codes_per_packet = 8192;
  join_and_push(resolve(large, 8972), 8192);
  pass(config->operation_timeout);
  ASSERT_TRUE(engine->failure());
  EXPECT_NE(engine->failure()->message.find("codes_per_packet=1024"), std::string::npos) << engine->failure()->message;
}

// As when such a path takes the place of one with large frames during a training.
TEST_F(EngineTest, DeadlineThinksOfThePacketSizeWhenCodesGetThroughNoMore) {
  SessionConfig large = test_config(4, 2);
  large.codes_per_packet = 8192;
  for (const bool arrived : {false, true}) {
    const auto packets = join_and_push(resolve(large, 8972), 8192);
    arrive(aggregate_of(packets[0], 1));
    ASSERT_TRUE(push->operation->done());
    pass(Duration(10'000));
    push = std::make_unique<Push>(std::uint16_t{4}, 8192, *config, 1);
    engine->submit(push->operation, now);
    engine->step(now);
    const auto second = packet_io.take_sent();
    const TimePoint deadline = now + config->operation_timeout;
    while (!engine->failure()) {
      now = std::min(engine->next_timer(), deadline);
      engine->step(now);
      packet_io.take_sent();
      if (arrived && !engine->failure()) arrive(error(header_of(second.at(0)), ErrorReason::kIncomplete, 1));
    }
    const std::string& message = engine->failure()->message;
    EXPECT_EQ(message.find("codes_per_packet=1024") == std::string::npos, arrived) << message;
    EXPECT_EQ(message.find("since then") == std::string::npos, arrived) << message;
  }
}

TEST_F(EngineTest, DeadlineThinksOfThePacketSizeOfNorms) {
  SessionConfig large = test_config(4, 2);
  large.codes_per_packet = 8192;
  for (const std::size_t norms : {300, 2000}) {  // small rotation blocks
    join(resolve(large, 8972));
    const std::vector<float> own(norms, 1);
    std::vector<float> max_norms(norms);
    engine->submit(Operation::norms(3, own, max_norms, 2048), now);
    engine->step(now);
    pass(config->operation_timeout);
    ASSERT_TRUE(engine->failure());
    packet_io.take_sent();
    const std::string& message = engine->failure()->message;
    EXPECT_EQ(message.find("codes_per_packet=1024") == std::string::npos, norms == 300) << message;
  }
}

TEST_F(EngineTest, IgnoresAnswersToAnotherHello) {
  start(two_workers());
  engine->step(now);
  Datagram replayed = welcome(0);
  replayed[16] ^= 1U;  // round: a part of the nonce
  arrive(replayed);
  EXPECT_FALSE(engine->connected());
  wire::Header header = header_of(replayed);
  header.epoch = std::uint32_t{0};
  arrive(error(header, ErrorReason::kTooManyJobs));
  EXPECT_FALSE(engine->failure());
  arrive(welcome(0));
  EXPECT_TRUE(engine->connected());
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

TEST_F(EngineTest, JoinsAgainAndRepeatsEverythingWhenTheServerForgotTheJob) {
  const auto packets = join_and_push(two_workers(), 64 * 3);
  arrive(aggregate_of(packets[1], 9));
  arrive(error(header_of(packets[0]), ErrorReason::kUnknownJob));
  auto sent = packet_io.take_sent();
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(type_of(sent[0]), MessageType::kHello);
  arrive(error(header_of(packets[2]), ErrorReason::kUnknownJob));  // late answer to the old epoch
  EXPECT_EQ(count(Count::kRejoins), 1U);
  packet_io.take_sent();
  arrive(welcome(0, 1, 10, 6));
  sent = packet_io.take_sent();
  ASSERT_EQ(sent.size(), 2U);
  EXPECT_EQ(header_of(sent[0]).slot, 2U);
  EXPECT_EQ(header_of(sent[1]).slot, 4U);
  EXPECT_EQ(header_of(sent[1]).epoch, 6U);
  arrive(aggregate_of(sent[0], 7));
  arrive(aggregate_of(sent[1], 8));
  ASSERT_TRUE(push->operation->done());
  EXPECT_FALSE(push->operation->failure());
  EXPECT_EQ(push->aggregate[0], 7U);
  EXPECT_EQ(push->aggregate[64], 9U);
  EXPECT_EQ(push->aggregate[128], 8U);
}

TEST_F(EngineTest, GoesOnInANewEpochWithWhatIsInFlight) {
  SessionConfig quorum = two_workers();
  quorum.quorum = 1;  // for which to join again would be the end
  for (const SessionConfig& settings : {two_workers(), quorum}) {
    const auto packets = join_and_push(settings, 64 * 3);
    arrive(aggregate_of(packets[1], 9));
    const auto new_epoch = [&](const Datagram& about, std::uint32_t epoch) {
      wire::Header header = header_of(about);
      header.message_type = static_cast<std::uint8_t>(MessageType::kError);
      wire::ErrorPayload payload{};
      payload.reason = static_cast<std::uint16_t>(ErrorReason::kNewEpoch);
      payload.job_value = epoch;
      return make_datagram(header, payload);
    };
    packet_io.take_sent();
    arrive(new_epoch(packets[0], 0));  // is none
    EXPECT_FALSE(engine->failure());
    packet_io.take_sent();
    arrive(new_epoch(packets[0], 6));
    arrive(new_epoch(packets[2], 6));  // of the epoch before
    pass(Duration(1'000));
    const auto sent = packet_io.take_sent();
    ASSERT_GE(sent.size(), 2U);
    EXPECT_EQ(header_of(sent[0]).slot, 2U);
    EXPECT_EQ(header_of(sent[1]).slot, 4U);
    for (const Datagram& packet : sent) {
      EXPECT_EQ(type_of(packet), MessageType::kCodes) << "no HELLO";
      EXPECT_EQ(header_of(packet).epoch, 6U);
      EXPECT_EQ(header_of(packet).flags, wire::kFlagRetransmit);
    }
    EXPECT_EQ(count(Count::kNewEpochs), 1U);
    EXPECT_EQ(count(Count::kRejoins), 0U);
    arrive(aggregate_of(packets[0], 1));  // of the epoch before
    EXPECT_FALSE(push->operation->done());
    arrive(aggregate_of(sent[0], 7));
    arrive(aggregate_of(sent[1], 8));
    ASSERT_TRUE(push->operation->done());
    EXPECT_FALSE(push->operation->failure());
    EXPECT_EQ(push->aggregate[0], 7U);
    EXPECT_EQ(push->aggregate[64], 9U);
    EXPECT_EQ(push->aggregate[128], 8U);
  }
}

TEST_F(EngineTest, WhoIsLeftBehindInTheNormsAbstains) {
  SessionConfig quorum = two_workers();
  quorum.quorum = 1;
  for (const bool server_knows : {true, false}) {
    start(quorum);
    engine->step(now);
    Datagram hello_answer = welcome(0);
    hello_answer[offsetof(wire::Header, flags)] = server_knows ? wire::kFlagAbstain : 0;
    arrive(hello_answer);
    packet_io.take_sent();
    const std::vector<float> norms{1, 2};
    std::vector<float> max_norms(2, 7);
    const auto norm_stage = Operation::norms(3, norms, max_norms, 16, 2);
    group->begin_norms(3);
    engine->submit(norm_stage, now);
    engine->step(now);
    wire::Header header = header_of(packet_io.take_sent().at(0));
    header.message_type = static_cast<std::uint8_t>(MessageType::kStraggler);
    header.payload_count = 0;
    arrive(
        Datagram(reinterpret_cast<const std::uint8_t*>(&header), reinterpret_cast<const std::uint8_t*>(&header + 1)));
    ASSERT_TRUE(norm_stage->done());
    EXPECT_FALSE(norm_stage->differs());
    EXPECT_EQ(max_norms, std::vector<float>(2, 0));
    EXPECT_TRUE(group->is_left_behind(3));
    EXPECT_FALSE(group->is_left_behind(2));
    push = std::make_unique<Push>(std::uint16_t{3}, 64, *config, 1);
    push->operation->abstain();  // as Session does
    engine->submit(push->operation, now);
    engine->step(now);
    const auto codes = packet_io.take_sent();
    ASSERT_EQ(codes.size(), 1U);
    EXPECT_EQ(header_of(codes[0]).flags, server_knows ? wire::kFlagAbstain : 0) << "a switch would drop it";
    EXPECT_EQ(count(Count::kAbstained), server_knows ? 1U : 0U);
    arrive(aggregate_of(codes[0], 5));
    EXPECT_EQ(push->aggregate[0], 5U) << "what the others have";
    group->begin_norms(3);
    EXPECT_FALSE(group->is_left_behind(3));
  }
}

TEST_F(EngineTest, WorkersWithOtherWordsKnowItBeforeAllNormsAreThere) {
  struct Case {
    std::uint16_t count;  ///< of the result
    std::uint8_t change;  ///< of its second word
    bool differs;
  };
  for (const Case& one : {Case{16, 0, false}, Case{16, 1, true}, Case{7, 1, true}, Case{1, 0, true}}) {
    join(two_workers());
    const std::vector<float> norms(20, 3);  // two packets
    std::vector<float> max_norms(20);
    const auto norm_stage = Operation::norms(3, norms, max_norms, 16, 2);
    engine->submit(norm_stage, now);
    engine->step(now);
    Datagram result = packet_io.take_sent().at(0);
    wire::Header header = header_of(result);
    header.message_type = static_cast<std::uint8_t>(MessageType::kMaxNorm);
    header.contributions = config->num_workers;
    header.payload_count = one.count;
    std::memcpy(result.data(), &header, sizeof(header));
    result.resize(sizeof(header) + 4 * std::size_t{one.count});
    if (one.count > 1) result[sizeof(header) + 7] ^= one.change;
    packet_io.arriving.push_back({kServer, result});
    EXPECT_EQ(engine->step(now).changed, one.differs);
    EXPECT_EQ(norm_stage->differs(), one.differs);
    EXPECT_FALSE(norm_stage->done());
    EXPECT_EQ(count(Count::kMalformed), 0U);
    packet_io.take_sent();
  }
}

TEST_F(EngineTest, SleepsWhileTheServerDoesNotLetItInAgain) {
  const auto packets = join_and_push(two_workers(), 64 * 3);
  arrive(error(header_of(packets[0]), ErrorReason::kUnknownJob));
  for (int i = 0; i < 20; ++i) {
    now = std::max(now, engine->next_timer());
    engine->step(now);
    ASSERT_GT(engine->next_timer(), now) << "a thread with a timer in the past never sleeps";
  }
  EXPECT_EQ(count(Count::kRetransmissions), 0U);
}

TEST_F(EngineTest, AnotherNumberOfNormsIsAnotherPartition) {
  const auto config_of_two = two_workers();
  start(config_of_two);
  engine->step(now);
  arrive(welcome(0));
  const std::vector<float> norms(8, 1.0F);
  std::vector<float> max_norms(norms.size());
  const auto stage = Operation::norms(0, norms, max_norms, 16);
  engine->submit(stage, now);
  engine->step(now);
  const auto sent = packet_io.take_sent();
  ASSERT_FALSE(sent.empty());
  wire::Header header = header_of(sent.back());
  header.message_type = static_cast<std::uint8_t>(MessageType::kMaxNorm);
  header.flags = 0;
  header.contributions = 2;
  header.payload_count = std::uint16_t{4};
  arrive(make_datagram(header, std::array<std::uint8_t, 16>{}));
  EXPECT_FALSE(stage->done());
  pass(Duration(3'000'000));
  ASSERT_TRUE(stage->done());
  EXPECT_EQ(stage->failure()->kind, Failure::Kind::kTransport) << stage->failure()->message;
}

TEST_F(EngineTest, ALateWelcomeOfALostEpochDoesNotBringItBack) {
  // With it, a late result of that epoch would be taken for a packet that the others have summed in a later one.
  const auto first = join_and_push(two_workers(), 64);
  arrive(error(header_of(first[0]), ErrorReason::kUnknownJob));
  packet_io.take_sent();
  arrive(welcome(0, 1, 10, 6));
  pass(Duration(1'000));
  const auto second = packet_io.take_sent();
  ASSERT_EQ(second.size(), 1U);
  arrive(error(header_of(second[0]), ErrorReason::kUnknownJob));
  packet_io.take_sent();
  arrive(welcome(0));
  arrive(aggregate_of(first[0], 9));
  EXPECT_FALSE(push->operation->done());
  arrive(welcome(0, 1, 10, 7));
  pass(Duration(1'000));
  const auto third = packet_io.take_sent();
  ASSERT_EQ(third.size(), 1U);
  EXPECT_EQ(header_of(third[0]).epoch, 7U);
}

TEST_F(EngineTest, RestartErrorWhenTheServerComesBackWithOtherSlots) {
  const auto packets = join_and_push(two_workers(), 64);
  arrive(error(header_of(packets[0]), ErrorReason::kUnknownJob));
  arrive(welcome(0, 1, 20, 6));
  ASSERT_TRUE(push->operation->failure());
  EXPECT_EQ(push->operation->failure()->kind, Failure::Kind::kRestart);
  EXPECT_NE(push->operation->failure()->message.find("was restarted: it has another number of slots"),
            std::string::npos);
}

TEST_F(EngineTest, AQuorumCannotBeRepeatedByARestartedServer) {
  // The others might complete the round again with another maximum norm than the one this worker has.
  SessionConfig quorum = two_workers();
  quorum.quorum = 1;
  const auto packets = join_and_push(quorum, 64);
  arrive(error(header_of(packets[0]), ErrorReason::kUnknownJob));
  ASSERT_TRUE(push->operation->done());
  ASSERT_TRUE(push->operation->failure());
  EXPECT_EQ(push->operation->failure()->kind, Failure::Kind::kRestart);
  EXPECT_NE(push->operation->failure()->message.find("does not know the job any more (it was restarted, or dropped"),
            std::string::npos);
  EXPECT_TRUE(packet_io.take_sent().empty());
}

TEST_F(EngineTest, SaysHelloUntilTheServerLetsGoOfACrashedPredecessor) {
  start(two_workers());
  engine->step(now);
  const Datagram taken = error(header_of(packet_io.take_sent()[0]), ErrorReason::kDuplicateWorker);
  for (int ms = 0; ms < 1'200; ++ms) {
    pass(Duration(1'000));
    for ([[maybe_unused]] const Datagram& hello : packet_io.take_sent()) {
      arrive(taken);
    }
    ASSERT_FALSE(engine->failure());
  }
  arrive(welcome(0));
  EXPECT_TRUE(engine->connected());
  pass(Duration(5'000'000));
  EXPECT_FALSE(engine->failure());
}

TEST_F(EngineTest, SaysWhichTrainingItIsOf) {
  SessionConfig settings = two_workers();
  settings.run = 0x1122334455667788;
  start(settings);
  engine->step(now);
  const Datagram hello = packet_io.take_sent()[0];
  const ParsedHello parsed = parse_hello(hello, 1500);
  ASSERT_TRUE(std::holds_alternative<Hello>(parsed));
  EXPECT_EQ(std::get<Hello>(parsed).run, 0x1122334455667788U);
}

TEST_F(EngineTest, WaitsForAnotherTrainingToMakeWay) {
  for (const std::uint64_t run : {std::uint64_t{7}, std::uint64_t{0}}) {
    SessionConfig settings = two_workers();
    settings.run = run;
    start(settings);
    engine->step(now);
    const TimePoint started_at = now;
    const Datagram refused = error(header_of(packet_io.take_sent()[0]), ErrorReason::kOtherTraining);
    std::size_t hellos = 0;
    arrive(refused);
    while (!engine->failure()) {
      now = engine->next_timer();
      engine->step(now);
      for ([[maybe_unused]] const Datagram& hello : packet_io.take_sent()) {
        ++hellos;
        arrive(refused);
      }
    }
    EXPECT_EQ(engine->failure()->kind, Failure::Kind::kRefused);
    EXPECT_NE(engine->failure()->message.find("another training uses this job number"), std::string::npos);
    EXPECT_EQ(engine->failure()->message.find("THC_RUN") != std::string::npos, run == 0);
    EXPECT_EQ(engine->failure()->message.find("DMLC_PS_ROOT_URI") != std::string::npos, run != 0);
    EXPECT_EQ(now - started_at, Duration(3'000'000));
    EXPECT_GE(hellos, 10U) << "which make the server ask whether the other one lives";
  }
}

TEST_F(EngineTest, FailsWhenAnotherProcessKeepsTheWorkerId) {
  for (const Duration connect_timeout : {Duration(10'000'000), Duration(1'000'000)}) {
    SessionConfig settings = two_workers();
    settings.connect_timeout = connect_timeout;
    start(settings);
    engine->step(now);
    const TimePoint started_at = now;
    arrive(error(header_of(packet_io.take_sent()[0]), ErrorReason::kDuplicateWorker));
    while (!engine->failure()) {
      now = engine->next_timer();
      engine->step(now);
    }
    packet_io.take_sent();
    EXPECT_EQ(engine->failure()->kind, Failure::Kind::kRefused);
    EXPECT_EQ(now - started_at, std::min(connect_timeout, Duration(3'000'000)));
  }
}

TEST_F(EngineTest, ARackThatWaitsForTheRootHasGivenThePlace) {
  start(two_workers());
  engine->step(now);
  const TimePoint started_at = now;
  const wire::Header hello = header_of(packet_io.take_sent()[0]);
  arrive(error(hello, ErrorReason::kDuplicateWorker));
  pass(Duration(1'000'000));
  arrive(error(hello, ErrorReason::kRacksIncomplete));
  while (!engine->failure()) {
    now = engine->next_timer();
    engine->step(now);
  }
  packet_io.take_sent();
  EXPECT_EQ(engine->failure()->kind, Failure::Kind::kDeadline);
  EXPECT_EQ(now - started_at, two_workers().connect_timeout);
}

TEST_F(EngineTest, RefusalsEndTheSession) {
  const std::vector<std::pair<ErrorReason, Failure::Kind>> refusals = {
      {ErrorReason::kStaleEpoch, Failure::Kind::kRestart},
      {ErrorReason::kOrderMismatch, Failure::Kind::kTransport},
      {ErrorReason::kDraining, Failure::Kind::kTransport},
      {ErrorReason::kDuplicateWorker, Failure::Kind::kRefused}};
  for (const auto& [reason, kind] : refusals) {
    const auto packets = join_and_push(two_workers(), 64);
    arrive(error(header_of(packets[0]), reason));
    if (reason == ErrorReason::kOrderMismatch) {
      EXPECT_FALSE(push->operation->done()) << "norms may tell more";
      pass(Duration(3'000'000));
      packet_io.take_sent();
    }
    ASSERT_TRUE(push->operation->done());
    ASSERT_TRUE(push->operation->failure());
    EXPECT_EQ(push->operation->failure()->kind, kind);
  }
}

/// Deadlines may be shorter than the time for which it is borne, and a stalled thread may hear it when both are over.
TEST_F(EngineTest, OrderMismatchIsWhyADeadlinePassed) {
  for (const Duration told_after : {Duration(100), Duration(1'999'999), Duration(60'000'000)}) {
    SessionConfig config = two_workers();
    config.operation_timeout = Duration(2'000'000);
    const auto packets = join_and_push(config, 64);
    now += told_after;
    arrive(error(header_of(packets[0]), ErrorReason::kOrderMismatch));
    if (!push->operation->done()) {
      pass(Duration(2'000'000) - told_after);
    }
    ASSERT_TRUE(push->operation->failure());
    EXPECT_EQ(push->operation->failure()->kind, Failure::Kind::kTransport) << told_after.count();
    EXPECT_NE(push->operation->failure()->message.find("in the same order"), std::string::npos);
  }
}

TEST_F(EngineTest, StragglerMeansALostRoundUnlessThereIsAQuorum) {
  auto packets = join_and_push(two_workers(), 64);
  wire::Header header = header_of(packets[0]);
  header.message_type = static_cast<std::uint8_t>(MessageType::kStraggler);
  header.payload_count = 0;
  const Datagram straggler(reinterpret_cast<const std::uint8_t*>(&header),
                           reinterpret_cast<const std::uint8_t*>(&header + 1));
  arrive(straggler);
  ASSERT_TRUE(push->operation->failure());
  EXPECT_EQ(push->operation->failure()->kind, Failure::Kind::kRestart);
  EXPECT_NE(push->operation->failure()->message.find("says that the other workers are already past slot"),
            std::string::npos);
  EXPECT_EQ(push->operation->failure()->message.find("restarted"), std::string::npos) << "nobody knows that";

  SessionConfig quorum = two_workers();
  quorum.quorum = 1;
  join_and_push(quorum, 64);
  arrive(straggler);
  ASSERT_TRUE(push->operation->done());
  EXPECT_FALSE(push->operation->failure());
  EXPECT_EQ(push->contributions[0], 0U);
  EXPECT_EQ(push->aggregate, std::vector<std::uint8_t>(64, 0));
}

TEST_F(EngineTest, LossTolerantGivesUpCodesButNeverNorms) {
  SessionConfig tolerant = two_workers();
  tolerant.delivery = Delivery::kLossTolerant;
  const auto packets = join_and_push(tolerant, 64 * 2);
  std::vector<float> norms{1, 2};
  std::vector<float> max_norms(2);
  const auto norm_stage = Operation::norms(4, norms, max_norms, 16);
  engine->submit(norm_stage, now);
  engine->step(now);
  arrive(aggregate_of(packets[1], 5));
  packet_io.take_sent();
  pass(tolerant.loss_timeout);
  ASSERT_TRUE(push->operation->done());
  EXPECT_FALSE(push->operation->failure());
  EXPECT_EQ(push->contributions, std::vector<std::uint8_t>({0, 2}));
  EXPECT_EQ(push->aggregate[0], 0U);
  EXPECT_EQ(push->aggregate[64], 5U);
  EXPECT_EQ(count(Count::kGivenUp), 1U);
  EXPECT_FALSE(norm_stage->done());
  const auto again = packet_io.take_sent();
  ASSERT_EQ(again.size(), 1U);
  EXPECT_EQ(type_of(again[0]), MessageType::kNorm);
}

TEST_F(EngineTest, LossTolerantGivesUpCodesWhileTheServerIsAway) {
  SessionConfig tolerant = two_workers();
  tolerant.delivery = Delivery::kLossTolerant;
  join_and_push(tolerant, 64);
  pass(tolerant.loss_timeout / 2);
  Push second(4, 64, *config, 2);
  engine->submit(second.operation, now);
  engine->step(now);
  const TimePoint lost_at = now + tolerant.loss_timeout;
  const auto packets = packet_io.take_sent();
  ASSERT_EQ(packets.size(), 1U);
  arrive(error(header_of(packets[0]), ErrorReason::kUnknownJob));
  while (!second.operation->done() && now < lost_at + Duration(1'000'000)) {
    now = std::max(now + Duration(1), engine->next_timer());
    engine->step(now);
  }
  EXPECT_TRUE(push->operation->done());
  EXPECT_TRUE(second.operation->done());
  EXPECT_FALSE(second.operation->failure());
  EXPECT_LE(now, lost_at + Duration(1'000));
}

TEST_F(EngineTest, TakesAResultOnlyOnce) {
  const auto packets = join_and_push(two_workers(), 64 * 2);
  arrive(aggregate_of(packets[0], 1));
  arrive(aggregate_of(packets[0], 2));
  EXPECT_EQ(count(Count::kDuplicates), 1U);
  EXPECT_EQ(push->aggregate[0], 1U);
}

TEST_F(EngineTest, DropsAndCountsWhatIsNotForIt) {
  const auto packets = join_and_push(two_workers(), 64);
  const Datagram good = aggregate_of(packets[0], 1);
  const auto with = [&](auto change) {
    wire::Header header = header_of(good);
    change(header);
    Datagram changed = good;
    std::memcpy(changed.data(), &header, sizeof(header));
    return changed;
  };
  std::vector<Datagram> bad = {
      with([](wire::Header& h) { h.version = 1; }),
      with([](wire::Header& h) { h.message_type = 0; }),
      with([](wire::Header& h) { h.message_type = 200; }),
      with([](wire::Header& h) { h.message_type = static_cast<std::uint8_t>(MessageType::kCodes); }),
      with([](wire::Header& h) { h.message_type = static_cast<std::uint8_t>(MessageType::kMaxNorm); }),
      with([](wire::Header& h) { h.job_id = 8; }),
      with([](wire::Header& h) { h.worker_id = 1; }),
      with([](wire::Header& h) { h.num_workers = 3; }),
      with([](wire::Header& h) { h.code_bits = 3; }),
      with([](wire::Header& h) { h.value_bits = 16; }),
      with([](wire::Header& h) { h.contributions = 1; }),  // less than the quorum
      with([](wire::Header& h) { h.contributions = 3; }),  // more than the workers
      with([](wire::Header& h) { h.slot = 0; }),           // a NORM slot
      with([](wire::Header& h) { h.slot = 10; }),
      with([](wire::Header& h) { h.slot = 0xffffffff; }),
      with([](wire::Header& h) { h.chunk = 1; }),
      with([](wire::Header& h) { h.partition = 4; }),
      with([](wire::Header& h) { h.payload_count = 63; }),
      {},
      Datagram(31)};
  bad.push_back(good);
  bad.back().push_back(0);
  bad.push_back(good);
  bad.back().pop_back();
  bad.push_back(with([](wire::Header& h) { h.payload_count = 32; }));
  bad.back().resize(sizeof(wire::Header) + 32);  // consistent, but not this chunk's length
  for (const Datagram& datagram : bad) {
    arrive(datagram);
    EXPECT_FALSE(push->operation->done());
  }
  EXPECT_EQ(count(Count::kMalformed) + count(Count::kStale), bad.size());

  arrive(with([](wire::Header& h) { h.epoch = 4; }));
  arrive(with([](wire::Header& h) { h.round = 2; }));
  arrive(with([](wire::Header& h) { h.round = 0; }));
  EXPECT_EQ(count(Count::kMalformed) + count(Count::kStale), bad.size() + 3);
  arrive(good, {kServer.ip, 1});
  arrive(good, {kServer.ip + 1, kServer.port});
  EXPECT_EQ(count(Count::kForeign), 2U);
  EXPECT_EQ(push->aggregate, std::vector<std::uint8_t>(64, 0xee));
  arrive(good);
  EXPECT_TRUE(push->operation->done());
}

TEST_F(EngineTest, IgnoresAnImpossibleWelcome) {
  start(two_workers());
  engine->step(now);
  for (const Datagram& impossible :
       {welcome(0, 0), welcome(0, 1000), welcome(0, 1, 2), welcome(0, 1, 0xffffffff), welcome(1, 2)}) {
    arrive(impossible);
    EXPECT_FALSE(engine->connected());
  }
  arrive(welcome(0));
  EXPECT_TRUE(engine->connected());
}

TEST_F(EngineTest, AnEmptyPartitionIsDoneAtOnce) {
  EXPECT_TRUE(join_and_push(two_workers(), 0).empty());
  EXPECT_TRUE(push->operation->done());
  EXPECT_FALSE(push->operation->failure());
}

TEST_F(EngineTest, EndFailsWhatIsInFlightAndSaysGoodbye) {
  join_and_push(two_workers(), 64);
  engine->end({Failure::Kind::kTransport, "the session is closed"});
  EXPECT_EQ(push->operation->failure()->message, "the session is closed");
  const auto sent = packet_io.take_sent();
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(type_of(sent[0]), MessageType::kGoodbye);
}

}  // namespace
}  // namespace thc::testing
