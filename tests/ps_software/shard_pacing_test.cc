// Results that go at a pace, where many were asked for again.
#include "shard_fixture.h"

namespace thc::ps {
namespace {

class Pacing : public ShardTest {
 protected:
  Pacing() {
    join_all();
    // A queue holds two results: of each slot's three one is lost, and asked for again.
    for (round = 1; round <= 300; ++round) {
      pass_on(complete());
      while (shard->next_result() != TimePoint::max()) {
        now = std::max(now, shard->next_result());
        pass_on(exchange({}));
      }
      if (lost > 0) {
        --lost;
        now += 2ms;
        pass_on(from_worker(2, again(2)));
      }
    }
  }

  void pass_on(const std::vector<Reply>& results) { lost += results.size() == kWorkers ? 1 : 0; }

  /// The answers to the last worker's packet.
  std::vector<Reply> complete() {
    for (unsigned worker = 0; worker + 1 < kWorkers; ++worker) from_worker(worker, make_codes(worker, round));
    now += 4ms;
    return from_worker(kWorkers - 1, make_codes(kWorkers - 1, round));
  }
  Bytes again(unsigned worker) const {
    return with_header(make_codes(worker, round), [](auto& h) { h.flags = wire::kFlagRetransmit; });
  }
  /// All results that wait in the shard.
  std::vector<Reply> wait() {
    std::vector<Reply> results;
    while (shard->next_result() != TimePoint::max()) {
      now = std::max(now, shard->next_result());
      for (Reply& result : exchange({})) results.push_back(std::move(result));
    }
    return results;
  }

  std::uint32_t round = 0;
  std::size_t lost = 0;
};

TEST_F(Pacing, ResultsGoAtAPaceToEveryWorker) {
  ASSERT_LT(complete().size(), kWorkers) << "at once";
  const std::vector<Reply> results = wait();
  ASSERT_GE(results.size(), 1U);
  for (const Reply& result : results) {
    EXPECT_EQ(result.payload, Bytes(kCodes, kWorkers));
    EXPECT_EQ(result.header.round, round);
    EXPECT_EQ(result.to, address(result.header.worker_id));
    EXPECT_EQ(result.header.flags, result.header.worker_id == kWorkers - 1 ? wire::kFlagLast : 0);
  }
}

TEST_F(Pacing, AResultThatWaitsIsNotSentTwice) {
  const std::size_t at_once = complete().size();
  ASSERT_LT(at_once, kWorkers);
  EXPECT_TRUE(from_worker(kWorkers - 1, again(kWorkers - 1)).empty());
  EXPECT_EQ(at_once + wait().size(), kWorkers);
}

TEST_F(Pacing, NothingOfAJobThatStartedOverIsSent) {
  ASSERT_LT(complete().size(), kWorkers);
  for (unsigned worker = 0; worker < kWorkers; ++worker) from_worker(worker, make_goodbye(worker));
  for (const Reply& reply : wait()) EXPECT_NE(reply.type(), wire::MessageType::kAggregate);
}

TEST_F(Pacing, WhereNobodyAsksAgainResultsGoAtOnce) {
  for (unsigned i = 0; i < 1000; ++i, ++round) {
    complete();
    wait();
  }
  EXPECT_EQ(complete().size(), kWorkers);
  EXPECT_EQ(shard->next_result(), TimePoint::max());
}

}  // namespace
}  // namespace thc::ps
