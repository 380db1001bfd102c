// Joining again: servers that forgot the job or came back, new epochs.
#include <gtest/gtest.h>

#include "one_engine.h"

namespace thc::testing {
namespace {

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

TEST_F(EngineTest, RepeatsEverythingWhenTheServerHasLearnedItsAddress) {
  const auto packets = join_and_push(two_workers(), std::size_t{64} * 3);
  ASSERT_EQ(packets.size(), 3U);
  const auto welcome_with = [&](std::uint8_t flags, std::uint32_t epoch) {
    Datagram datagram = welcome(0, 1, 10, epoch);
    datagram[offsetof(wire::Header, flags)] = flags;
    return datagram;
  };
  arrive(welcome_with(0, 5));
  arrive(welcome_with(wire::kFlagRetransmit, 6));
  EXPECT_TRUE(packet_io.take_sent().empty());
  arrive(welcome_with(wire::kFlagRetransmit, 5));
  const auto again = packet_io.take_sent();
  ASSERT_EQ(again.size(), packets.size());
  for (std::size_t i = 0; i < again.size(); ++i) {
    EXPECT_EQ(header_of(again[i]).slot, header_of(packets[i]).slot);
    EXPECT_NE(header_of(again[i]).flags & wire::kFlagRetransmit, 0);
  }
}

TEST_F(EngineTest, GoesOnInANewEpochWithWhatIsInFlight) {
  SessionConfig quorum = two_workers();
  quorum.quorum = 1;  // for which to join again would be the end
  for (const SessionConfig& settings : {two_workers(), quorum}) {
    const auto packets = join_and_push(settings, 64 * 3);
    arrive(aggregate_of(packets[1], 9));
    const auto new_epoch = [&](const Datagram& about, std::uint32_t epoch) {
      return error(header_of(about), ErrorReason::kNewEpoch, 0, epoch);
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
    say_hello(quorum);
    Datagram hello_answer = welcome(0);
    hello_answer[offsetof(wire::Header, flags)] = server_knows ? wire::kFlagAbstain : 0;
    arrive(hello_answer);
    packet_io.take_sent();
    const std::vector<float> norms{1, 2};
    std::vector<float> max_norms(2, 7);
    const auto norm_stage = Operation::norms(3, norms, max_norms, 16, 2);
    state->begin_norms(3);
    submit(norm_stage);
    arrive(straggler(header_of(packet_io.take_sent().at(0))));
    ASSERT_TRUE(norm_stage->done());
    EXPECT_FALSE(norm_stage->differs());
    EXPECT_EQ(max_norms, std::vector<float>(2, 0));
    EXPECT_TRUE(state->is_left_behind(3));
    EXPECT_FALSE(state->is_left_behind(2));
    push = std::make_unique<Push>(std::uint16_t{3}, 64, *config, 1);
    push->operation->abstain();  // as Session does
    submit(push->operation);
    const auto codes = packet_io.take_sent();
    ASSERT_EQ(codes.size(), 1U);
    EXPECT_EQ(header_of(codes[0]).flags, server_knows ? wire::kFlagAbstain : 0) << "a switch would drop it";
    EXPECT_EQ(count(Count::kAbstained), server_knows ? 1U : 0U);
    arrive(aggregate_of(codes[0], 5));
    EXPECT_EQ(push->aggregate[0], 5U) << "what the others have";
    state->begin_norms(3);
    EXPECT_FALSE(state->is_left_behind(3));
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
    submit(norm_stage);
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
  join(two_workers());
  const std::vector<float> norms(8, 1.0F);
  std::vector<float> max_norms(norms.size());
  const auto stage = Operation::norms(0, norms, max_norms, 16);
  submit(stage);
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

}  // namespace
}  // namespace thc::testing
