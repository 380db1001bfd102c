// Waiting: deadlines and their messages.
#include <gtest/gtest.h>

#include "io/address.h"
#include "one_engine.h"

namespace thc::testing {
namespace {

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
  // The session is broken: later operations end at once with the same cause.
  Push later(1, 64, *config, 2);
  submit(later.operation);
  ASSERT_TRUE(later.operation->done());
  EXPECT_EQ(later.operation->failure()->message, failure.message);
}

TEST_F(EngineTest, AProcessThatWasAwayWaitsOnceMore) {
  join_and_push(two_workers(), 64);
  now += Duration(60'000);
  engine->step(now, /*was_away=*/true);
  EXPECT_EQ(count(Count::kRetransmissions), 0U) << "the packet may have left only now";
  pass(Duration(19'999));
  EXPECT_EQ(count(Count::kRetransmissions), 0U);
  now += Duration(60'000);
  engine->step(now, /*was_away=*/true);
  EXPECT_EQ(count(Count::kRetransmissions), 1U) << "a host that is never in time must ask some time";
}

TEST_F(EngineTest, AnswersThatWaitAreTakenBeforeAnythingIsRepeated) {
  const auto packets = join_and_push(two_workers(), 64);
  for (int i = 0; i < 64; ++i) packet_io.arriving.push_back({{1, 2}, packets[0]});  // as many as a step takes
  packet_io.arriving.push_back({kServer, aggregate_of(packets[0], 1)});
  pass(Duration(60'000));
  EXPECT_FALSE(push->operation->done());
  engine->step(now);
  EXPECT_TRUE(push->operation->done());
  EXPECT_EQ(count(Count::kRetransmissions), 0U);
}

TEST_F(EngineTest, AServerOnThisHostMayHaveNoProcessorForLong) {
  packet_io.own_host = true;
  const auto packets = join_and_push(two_workers(), 64);
  pass(Duration(49'999));
  EXPECT_EQ(count(Count::kRetransmissions), 0U);
  arrive(aggregate_of(packets[0], 1));
  Push later(4, 64, *config, 2);  // round trips were long; had they been short, the server may still be away
  submit(later.operation);
  pass(Duration(49'999));
  EXPECT_EQ(count(Count::kRetransmissions), 0U);
  pass(Duration(200'000));
  EXPECT_EQ(count(Count::kRetransmissions), 1U);
}

TEST_F(EngineTest, AWayOnThisHostThatLosesPacketsHasTheTimersOfOthers) {
  packet_io.own_host = true;
  const auto packets = join_and_push(two_workers(), 64 * 4);
  ASSERT_EQ(packets.size(), 4U);
  for (std::size_t later = 1; later < 4; ++later) arrive(aggregate_of(packets[later], 1));
  ASSERT_EQ(count(Count::kRetransmissions), 1U) << "three have overtaken the first";
  pass(Duration(20'000));
  EXPECT_EQ(count(Count::kRetransmissions), 2U);
}

TEST_F(EngineTest, DeadlineTellsThatAMissingWorkerWasRefused) {
  for (const auto& [field, hint] : {std::pair(wire::ConfigField::kCodesPerPacket, "(1024, here 64). \"auto\" is"),
                                    std::pair(wire::ConfigField::kTable, "differs in the lookup table")}) {
    const auto packets = join_and_push(two_workers(), 64);
    arrive(notice_of_refused_worker(packets[0], field, 1024));
    now += config->operation_timeout;
    arrive(notice_of_refused_worker(packets[0], field, 1024));
    expect_failure({"missing worker 1; the server has refused one", hint});
  }
}

TEST_F(EngineTest, DeadlineNamesTheMissingRackOrTheRoot) {
  for (const auto& [seen, text] : {std::pair(0b01U, ": rack 1 of 2 (from 0) has not sent its part"),
                                   std::pair(0U, ": this worker's rack is complete, but the root, the server above")}) {
    join_and_push(two_workers(), 64);
    pass(Duration(20'000));
    const auto again = packet_io.take_sent();
    ASSERT_EQ(again.size(), 1U);
    arrive(error(header_of(again[0]), ErrorReason::kRacksIncomplete, seen, 2));
    pass(config->operation_timeout);
    expect_failure({text});
    EXPECT_EQ(engine->failure()->missing_workers, 0U);
  }
}

// The server dies while worker 1 computes: its earlier notice is no reason to blame worker 1.
TEST_F(EngineTest, DeadlineBlamesAServerThatHasStoppedAnswering) {
  join_and_push(two_workers(), 64);
  pass(Duration(20'000));
  const auto again = packet_io.take_sent();
  ASSERT_EQ(again.size(), 1U);
  arrive(error(header_of(again[0]), ErrorReason::kIncomplete, 0b01));
  for (Duration passed{0}; passed < config->operation_timeout; passed += Duration(50'000)) pass(Duration(50'000));
  expect_failure({"the server has not answered for", "before that it waited for worker 1"});
  EXPECT_EQ(engine->failure()->kind, Failure::Kind::kDeadline);
  EXPECT_EQ(engine->failure()->missing_workers, 0U);
}

// Results above an MTU get lost, or all answers of one port. A notice is an answer: others are slow.
TEST_F(EngineTest, TellsHowLongAServerHasDeliveredNothing) {
  const auto pass_in_steps = [this](Duration time) {
    for (Duration passed{0}; passed < time; passed += Duration(50'000)) pass(Duration(50'000));
  };
  const auto packets = join_and_push(two_workers(), 64);
  pass(Duration(5'000'000));
  EXPECT_EQ(state->unanswered(0).for_ms, 0U) << "it was not sent again: this process did not run";
  pass_in_steps(Duration(3'000'000));
  EXPECT_GE(state->unanswered(0).for_ms, 7'500U);
  EXPECT_EQ(state->unanswered(0).port, kServer.port);
  arrive(error(header_of(packets[0]), ErrorReason::kIncomplete, 0b01));
  EXPECT_EQ(state->unanswered(0).for_ms, 0U);
  pass_in_steps(Duration(2'000'000));
  EXPECT_GE(state->unanswered(0).for_ms, 1'500U);
  EXPECT_LE(state->unanswered(0).for_ms, 2'000U);
  arrive(aggregate_of(packets[0], 1));
  EXPECT_EQ(state->unanswered(0).for_ms, 0U);
}

// On a way that loses much, a packet may be lost over and over while others have results: the server delivers.
TEST_F(EngineTest, AServerDeliversWhileAnyPacketHasAResult) {
  const auto packets = join_and_push(two_workers(), std::size_t{64} * 40);
  ASSERT_GE(packets.size(), 8U);
  for (std::size_t i = 7; i > 0; --i) {
    for (int step = 0; step < 30; ++step) pass(Duration(50'000));
    EXPECT_LE(state->unanswered(0).for_ms, 1'500U);
    arrive(aggregate_of(packets[i], 1));
    EXPECT_EQ(state->heard_at(0), now);
  }
  for (int step = 0; step < 100; ++step) pass(Duration(50'000));
  EXPECT_GE(state->unanswered(0).for_ms, 2'000U) << "the first packet still has none";
  EXPECT_LT(state->heard_at(0), now - Duration(2'000'000));
}

constexpr wire::ChallengePayload kChallenge = [] {
  wire::ChallengePayload payload{};
  payload.cookie = std::uint64_t{77};
  return payload;
}();

std::uint64_t cookie_of(const Datagram& hello) {
  wire::HelloPayload payload;
  std::memcpy(&payload, hello.data() + sizeof(wire::Header), sizeof(payload));
  return payload.cookie;
}

TEST_F(EngineTest, DeadlineNamesTheServerThatAnswersHelloAndDeliversNothing) {
  join_and_push(two_workers(), 64);
  std::size_t questions = 0;
  for (Duration passed{0}; passed < config->operation_timeout; passed += Duration(50'000)) {
    pass(Duration(50'000));
    for (const Datagram& sent : packet_io.take_sent()) {
      if (type_of(sent) == MessageType::kHello && cookie_of(sent) == 0) {
        ++questions;
        wire::Header header = header_of(sent);
        header.message_type = static_cast<std::uint8_t>(MessageType::kChallenge);
        arrive(make_datagram(header, kChallenge));
        ASSERT_FALSE(packet_io.sent.empty());
        const Datagram& answer = packet_io.sent.back();
        EXPECT_EQ(type_of(answer), MessageType::kHello);
        EXPECT_EQ(cookie_of(answer), 77U) << "which proves the address that the server is to send to";
        EXPECT_EQ(header_of(answer).epoch, 5U) << "and what it knows of the job";
        arrive(make_datagram(header, kChallenge));
        EXPECT_EQ(packet_io.sent.back(), answer) << "a copy is not answered";
      }
    }
  }
  EXPECT_GT(questions, 1U);
  EXPECT_LE(questions, static_cast<std::size_t>(config->operation_timeout / Duration(300'000)));
  expect_failure({"the server answers, but " + io::to_string(kServer) + " has delivered nothing for",
                  "Check that firewalls let UDP pass both ways on port", "MTU"});
}

// The switch of a rack passes a repetition on to its root, and has nothing to say about one that does not answer.
TEST_F(EngineTest, DeadlineOfASilentSwitchNamesTheRoot) {
  const std::string hint = "the root, the server above it, is silent: is thc-ps running where";
  join_and_push(two_workers(), 64);
  pass(config->operation_timeout);
  expect_failure({"the server does not answer"});
  EXPECT_EQ(engine->failure()->message.find(hint), std::string::npos) << "thc-ps says so itself";

  say_hello(two_workers());
  arrive(welcome(0, 1, 10, 5, 64));
  ASSERT_TRUE(engine->connected());
  push = std::make_unique<Push>(std::uint16_t{3}, 64, *config, 1);
  submit(push->operation);
  pass(config->operation_timeout);
  expect_failure({hint});
}

// As on a path whose middle has a smaller MTU than its ends: HELLO gets through, CODES do not.
TEST_F(EngineTest, DeadlineThinksOfThePacketSizeWhenOnlyCodesGetLost) {
  SessionConfig large = test_config(4, 2);
  large.codes_per_packet = 8192;
  join_and_push(resolve(large, 8972), 8192);
  pass(config->operation_timeout);
  expect_failure({"codes_per_packet=1024"});
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
    submit(push->operation);
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
    submit(Operation::norms(3, own, max_norms, 2048));
    pass(config->operation_timeout);
    ASSERT_TRUE(engine->failure());
    packet_io.take_sent();
    const std::string& message = engine->failure()->message;
    EXPECT_EQ(message.find("codes_per_packet=1024") == std::string::npos, norms == 300) << message;
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
    if (!push->operation->done()) pass(Duration(2'000'000) - told_after);
    ASSERT_TRUE(push->operation->failure());
    EXPECT_EQ(push->operation->failure()->kind, Failure::Kind::kTransport) << told_after.count();
    EXPECT_NE(push->operation->failure()->message.find("in the same order"), std::string::npos);
  }
}

}  // namespace
}  // namespace thc::testing
