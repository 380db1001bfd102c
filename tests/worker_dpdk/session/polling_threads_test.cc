// Sessions with several polling threads over kernel UDP.
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "session_fixture.h"

namespace thc::testing {
namespace {

/// Buffers of one stage of codes.
struct Buffers {
  explicit Buffers(std::size_t packets) : codes(packets * 512, 0x11), sums(packets * 1024), contributions(packets) {}
  Session::OperationPtr push(Session& session, std::uint16_t partition) {
    return session.push_codes(partition, codes, sums.size(), sums.data(), contributions);
  }
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> sums;
  std::vector<std::uint8_t> contributions;
};

class PollingThreads : public ::testing::TestWithParam<std::tuple<std::uint16_t, std::uint16_t, double>> {};

TEST_P(PollingThreads, ExactSums) {
  const auto [threads, shards, fault_rate] = GetParam();
  const Server server(shards);
  push_and_check(server, {threads, 1, threads}, fault_rate);  // workers need not have as many
  EXPECT_EQ(server.misdirected(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Shares, PollingThreads,
                         ::testing::Combine(::testing::Values(1, 2, 3), ::testing::Values(1, 2, 4),
                                            ::testing::Values(0.0, 0.01)));

// As with every switch, and a thc-ps of one thread.
TEST(PollingThreads, ThreadsWithoutAShardDoNotDelayJoining) {
  Duration fastest = Duration::max();
  for (int i = 0; i < 5; ++i) {  // the machine may be busy, but not each time
    Server::Ios sockets = io::make_udp_ios({.local = kLoopback}, 1);
    Session session(config_of(sockets.front()->local(), 0, 1), udp(3));
    std::this_thread::sleep_for(Duration(50'000));  // all threads wait by now
    const TimePoint start = Clock::now();
    const Server server(std::move(sockets));
    ASSERT_TRUE(session.wait_connected(kLongEnough));
    fastest = std::min(fastest, elapsed(start, Clock::now()));
  }
  EXPECT_LT(fastest, Duration(500'000)) << "that thread slept until its next look, after a second";
}

TEST(PollingThreads, CountsAreThoseOfAllThreads) {
  const Server server(2);
  Session session(config_of(server, 0, 1), udp(3));
  ASSERT_TRUE(session.wait_connected(kLongEnough));
  Buffers buffers(100);
  ASSERT_TRUE(session.wait(buffers.push(session, 0), kLongEnough));
  ASSERT_EQ(session.polling_threads(), 3U);
  EXPECT_EQ(session.count(Count::kAggregateReceived), 100U);
  EXPECT_EQ(session.count(Count::kAggregateReceived, 0), 50U);
  EXPECT_EQ(session.count(Count::kAggregateReceived, 1), 50U);
  EXPECT_EQ(session.count(Count::kCodesSent, 2), 0U) << "there is no third shard";
  EXPECT_EQ(session.count(Count::kSmoothedRttUs),
            std::max(session.count(Count::kSmoothedRttUs, 0), session.count(Count::kSmoothedRttUs, 1)));
}

TEST(PollingThreads, CloseWhileOperationsFly) {
  for (int i = 0; i < 20; ++i) {
    const Server server(2);
    Session session(config_of(server, 0, 1), udp(2));
    ASSERT_TRUE(session.wait_connected(kLongEnough));
    std::vector<Buffers> buffers(10, Buffers(50));
    std::vector<Session::OperationPtr> operations;
    std::thread closer([&] {
      std::this_thread::sleep_for(Duration(100 * i));
      session.close();
    });
    try {
      for (Buffers& part : buffers) {
        operations.push_back(part.push(session, static_cast<std::uint16_t>(operations.size())));
      }
    } catch (const TransportError& error) {
      EXPECT_STREQ(error.what(), "the session is closed");
    }
    for (std::size_t p = 0; p < operations.size(); ++p) {
      try {
        ASSERT_TRUE(session.wait(operations[p], kLongEnough)) << "lost";
        EXPECT_EQ(buffers[p].sums, std::vector<std::uint8_t>(50 * 1024, 1));
      } catch (const TransportError& error) {
        EXPECT_STREQ(error.what(), "the session is closed");
      }
    }
    closer.join();
  }
}

TEST(PollingThreads, ADeadlineFailsEverythingInTheSameWay) {
  const Server server(2);
  SessionConfig config = config_of(server, 0, 2);  // the other worker never comes
  config.operation_timeout = Duration(300'000);
  Session session(config, udp(2));
  ASSERT_TRUE(session.wait_connected(kLongEnough));
  std::vector<Buffers> buffers(4, Buffers(7));
  std::vector<Session::OperationPtr> operations;
  for (Buffers& part : buffers) {
    operations.push_back(part.push(session, static_cast<std::uint16_t>(operations.size())));
  }
  for (const Session::OperationPtr& operation : operations) {
    EXPECT_THROW(session.wait(operation, kLongEnough), DeadlineError);
    EXPECT_EQ(operation->failure()->message, operations.front()->failure()->message);
  }
  EXPECT_THROW(buffers[0].push(session, 4), DeadlineError);
}

TEST(PollingThreads, NoneIsAnError) {
  const Server server;
  EXPECT_THROW(Session(config_of(server, 0, 1), Session::PacketIos{}), ConfigurationError);
}

}  // namespace
}  // namespace thc::testing
