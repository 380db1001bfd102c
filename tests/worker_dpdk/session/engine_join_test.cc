// Joining a job: a worker's messages, and its reactions to answers.
#include <gtest/gtest.h>

#include "one_engine.h"

namespace thc::testing {
namespace {

constexpr io::Endpoint kOther{kServer.ip.ipv4() + 1, kServer.port};  // another server

TEST_F(EngineTest, SaysHelloToEveryShard) {
  say_hello(two_workers());
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

// As behind a firewall that opens the first port only.
TEST_F(EngineTest, TheShardThatDoesNotAnswerIsNamed) {
  say_hello(two_workers());
  arrive(welcome(0, 2));
  pass(config->connect_timeout);
  expect_failure({"server 10.0.0.1:48866 did not answer HELLO", "10.0.0.1:48865 did", "ports 48865 to 48866"});
}

TEST_F(EngineTest, AShardSpeaksForItsSlotsOnly) {
  say_hello(two_workers());
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
  submit(push->operation);
  const auto sent = packet_io.take_sent();
  ASSERT_FALSE(sent.empty());
  EXPECT_EQ(packet_io.sent_to, shard_address(header_of(sent.back()).slot % 3));
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
  expect_failure({"10.0.0.1:48865"});
  EXPECT_EQ(engine->failure()->kind, Failure::Kind::kDeadline);
}

TEST_F(EngineTest, NamesTheFieldAndBothValuesOfARefusedConfiguration) {
  say_hello(two_workers());
  const wire::Header hello = header_of(packet_io.take_sent()[0]);
  arrive(error(hello, ErrorReason::kConfigMismatch, 0, 4, wire::ConfigField::kNumWorkers));
  expect_failure({"num_workers of worker 0 differs from the job's (this worker: 2, job: 4)"});
  EXPECT_EQ(engine->failure()->kind, Failure::Kind::kRefused);
}

TEST_F(EngineTest, ComesBackWithPacketsThatFitEthernetWhereTheServerTakesNoLargerOnes) {
  for (const unsigned value_bits : {8U, 16U}) {
    SessionConfig settings = test_config(4, 2, value_bits);
    settings.codes_per_packet = 2048;
    say_hello(resolve(settings, 9000));
    const wire::Header hello = header_of(packet_io.take_sent()[0]);
    arrive(error(hello, ErrorReason::kBadConfig, 0, 0, wire::ConfigField::kCodesPerPacket));
    ASSERT_TRUE(engine->failure());
    EXPECT_EQ(engine->failure()->codes_per_packet, value_bits == 8 ? 1024U : 704U);
  }
}

/// Two servers: the second has accepted this worker's packets, and the first still has the earlier job.
TEST_F(EngineTest, WaitsForOthersToLeaveTheJobOfLargerPackets) {
  SessionConfig settings = test_config(4, 2);
  settings.servers.push_back(kOther);
  settings.codes_per_packet = 1024;
  settings.others_follow = true;
  for (const bool they_leave : {true, false}) {
    say_hello(resolve(settings, 65507));
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
      expect_failure({"(this worker: 1024, job: 8192)"});
      EXPECT_EQ(engine->failure()->kind, Failure::Kind::kRefused);
      EXPECT_EQ(engine->failure()->codes_per_packet, 0U);
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
    say_hello(resolve(settings, 65507));
    arrive(packets_differ(8192));
    ASSERT_TRUE(engine->failure());
    EXPECT_EQ(engine->failure()->kind, Failure::Kind::kRefused);
    packet_io.take_sent();
  }
}

TEST_F(EngineTest, SaysHelloWithTheCookieAtOnce) {
  say_hello(two_workers());
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
  // A server that keeps asking gets an answer when HELLO is due, not one for each question.
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
  arrive(probe());
  const auto sent = packet_io.take_sent();
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(type_of(sent[0]), MessageType::kAlive);
  EXPECT_EQ(sent[0].size(), probe().size());
  EXPECT_EQ(header_of(sent[0]).epoch, 5U);
  EXPECT_EQ(header_of(sent[0]).worker_id, config->worker_id);
  arrive(probe(6));  // a new epoch, of which this process was not told yet
  ASSERT_EQ(header_of(packet_io.take_sent().at(0)).epoch, 5U);
  arrive(probe(), {kServer.ip, 1});
  EXPECT_TRUE(packet_io.take_sent().empty());
  EXPECT_EQ(count(Count::kForeign), 1U);
}

// The server asks because others come back, who have their last results: it may start the job over in a second.
TEST_F(EngineTest, AsksForOverdueResultsWhenProbed) {
  const auto first = join_and_push(two_workers(), 64);
  for (int step = 0; step < 14; ++step) pass(Duration(50'000));
  arrive(aggregate_of(first[0], 1));  // the first round trip looks like 0.7 s
  ASSERT_TRUE(push->operation->done());
  Push last(4, 64, *config, 2);
  submit(last.operation);
  packet_io.take_sent();
  pass(Duration(50'000));
  arrive(probe());
  EXPECT_EQ(packet_io.take_sent().size(), 1U) << "ALIVE alone: the result is not late";
  pass(Duration(60'000));
  arrive(probe());
  EXPECT_EQ(packet_io.take_sent().size(), 1U) << "it has just looked for late results";
  for (int step = 0; step < 23; ++step) pass(Duration(50'000));
  EXPECT_TRUE(packet_io.take_sent().empty()) << "by itself it asks after 1.4 s";
  arrive(probe());
  auto sent = packet_io.take_sent();
  ASSERT_EQ(sent.size(), 2U);
  EXPECT_EQ(type_of(sent[0]), MessageType::kAlive);
  EXPECT_EQ(type_of(sent[1]), MessageType::kCodes);
  EXPECT_EQ(header_of(sent[1]).partition, 4U);
  EXPECT_NE(header_of(sent[1]).flags & wire::kFlagRetransmit, 0);
  arrive(probe());
  EXPECT_EQ(packet_io.take_sent().size(), 1U) << "it has just asked";
  arrive(aggregate_of(sent[1], 1));
  EXPECT_TRUE(last.operation->done());
}

TEST_F(EngineTest, IgnoresAnswersToAnotherHello) {
  say_hello(two_workers());
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

TEST_F(EngineTest, SaysHelloUntilTheServerLetsGoOfACrashedPredecessor) {
  say_hello(two_workers());
  const Datagram taken = error(header_of(packet_io.take_sent()[0]), ErrorReason::kDuplicateWorker);
  for (int ms = 0; ms < 1'200; ++ms) {
    pass(Duration(1'000));
    for ([[maybe_unused]] const Datagram& hello : packet_io.take_sent()) arrive(taken);
    ASSERT_FALSE(engine->failure());
  }
  arrive(welcome(0));
  EXPECT_TRUE(engine->connected());
  pass(Duration(5'000'000));
  EXPECT_FALSE(engine->failure());
}

TEST_F(EngineTest, WaitsForAnotherTrainingToMakeWay) {
  for (const std::uint64_t run : {std::uint64_t{7}, std::uint64_t{0}}) {
    SessionConfig settings = two_workers();
    settings.run = run;
    say_hello(settings);
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
    say_hello(settings);
    const TimePoint started_at = now;
    arrive(error(header_of(packet_io.take_sent()[0]), ErrorReason::kDuplicateWorker));
    step_until_failure();
    EXPECT_EQ(engine->failure()->kind, Failure::Kind::kRefused);
    EXPECT_EQ(now - started_at, std::min(connect_timeout, Duration(3'000'000)));
  }
}

TEST_F(EngineTest, ARackThatWaitsForTheRootHasGivenThePlace) {
  say_hello(two_workers());
  const TimePoint started_at = now;
  const wire::Header hello = header_of(packet_io.take_sent()[0]);
  arrive(error(hello, ErrorReason::kDuplicateWorker));
  pass(Duration(1'000'000));
  arrive(error(hello, ErrorReason::kRacksIncomplete));
  step_until_failure();
  EXPECT_EQ(engine->failure()->kind, Failure::Kind::kDeadline);
  expect_failure({"is that of a rack and answers"});
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

TEST_F(EngineTest, IgnoresAnImpossibleWelcome) {
  say_hello(two_workers());
  std::vector<Datagram> impossible{welcome(0, 0), welcome(0, 1000), welcome(0, 1, 2), welcome(0, 1, 0xffffffff),
                                   welcome(1, 2)};
  // A packet has 64 codes, which must be a multiple.
  for (const std::uint16_t multiple : {0, 3, 96, 128}) impossible.push_back(welcome(0, 1, 10, 5, multiple));
  for (const Datagram& each : impossible) {
    arrive(each);
    EXPECT_FALSE(engine->connected());
  }
  arrive(welcome(0, 1, 10, 5, 64));
  EXPECT_TRUE(engine->connected());
}

}  // namespace
}  // namespace thc::testing
