// Taking results, and giving rounds up.
#include <gtest/gtest.h>

#include "one_engine.h"

namespace thc::testing {
namespace {

TEST_F(EngineTest, StragglerMeansALostRoundUnlessThereIsAQuorum) {
  const auto packets = join_and_push(two_workers(), 64);
  arrive(straggler(header_of(packets[0])));
  ASSERT_TRUE(push->operation->failure());
  EXPECT_EQ(push->operation->failure()->kind, Failure::Kind::kRestart);
  EXPECT_NE(push->operation->failure()->message.find("says that the other workers are already past slot"),
            std::string::npos);
  EXPECT_EQ(push->operation->failure()->message.find("restarted"), std::string::npos) << "nobody knows that";

  SessionConfig quorum = two_workers();
  quorum.quorum = 1;
  join_and_push(quorum, 64);
  arrive(straggler(header_of(packets[0])));
  ASSERT_TRUE(push->operation->done());
  EXPECT_FALSE(push->operation->failure());
  EXPECT_EQ(push->contributions[0], 0U);
  EXPECT_EQ(push->aggregate, std::vector<std::uint8_t>(64, 0));
}

TEST_F(EngineTest, LossTolerantGivesUpCodesButNeverNorms) {
  SessionConfig tolerant = two_workers();
  tolerant.loss_tolerant = true;
  const auto packets = join_and_push(tolerant, 64 * 2);
  std::vector<float> norms{1, 2};
  std::vector<float> max_norms(2);
  const auto norm_stage = Operation::norms(4, norms, max_norms, 16);
  submit(norm_stage);
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
  tolerant.loss_tolerant = true;
  join_and_push(tolerant, 64);
  pass(tolerant.loss_timeout / 2);
  Push second(4, 64, *config, 2);
  submit(second.operation);
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
  arrive(good, {kServer.ip.ipv4() + 1, kServer.port});
  EXPECT_EQ(count(Count::kForeign), 2U);
  EXPECT_EQ(push->aggregate, std::vector<std::uint8_t>(64, 0xee));
  arrive(good);
  EXPECT_TRUE(push->operation->done());
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
