// Sessions over kernel UDP, against the server's packet handling in a thread of this process.
#include <gtest/gtest.h>

#include "session_fixture.h"

namespace thc::testing {
namespace {

/// Buffers of one stage of codes.
struct Buffers {
  explicit Buffers(std::size_t packets) : codes(packets * 512, 0x11), sums(packets * 1024), contributions(packets) {}
  Session::OperationPtr push(Session& session, std::uint16_t partition) {
    return session.push_codes(partition, codes.data(), sums.size(), sums.data(), contributions.data());
  }
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> sums;
  std::vector<std::uint8_t> contributions;
};

TEST(Session, ExactSumsOfAnyShards) {
  for (const std::uint16_t shards : {1, 2, 4}) {
    for (const double fault_rate : {0.0, 0.01}) {
      const Server server(shards);
      push_and_check(server, 3, fault_rate);
      EXPECT_EQ(server.misdirected(), 0U);
    }
  }
}

TEST(Session, ExactSumsWhereAPacketMustBeAMultipleOf128Codes) {
  const Server server(1, 128);  // as a switch; 100,000 codes and 100 norms end in the middle of a multiple
  push_and_check(server, 3, 0);
}

TEST(Session, EveryHelloReachesItsShard) {
  const Server server(32);
  Session session(config_of(server, 0, 1), udp());
  ASSERT_TRUE(session.wait_connected(kLongEnough));
  EXPECT_GE(session.count(Count::kHelloSent), 32U);  // more where answers come late, as on a busy machine
  EXPECT_EQ(server.misdirected(), 0U);
}

TEST(Session, CloseFailsWhatIsInFlightFromAnotherThread) {
  const Server server;
  Session session(config_of(server, 0, 2), udp());
  ASSERT_TRUE(session.wait_connected(kLongEnough));
  const std::vector<std::uint8_t> codes(512);
  std::vector<std::uint8_t> sums(1024);
  std::vector<std::uint8_t> contributions(1);
  const auto handle = session.push_codes(0, codes.data(), 1024, sums.data(), contributions.data());
  EXPECT_FALSE(session.wait(handle, Duration(1'000)));
  std::thread closer([&] { session.close(); });
  EXPECT_THROW(session.wait(handle, kLongEnough), TransportError);
  closer.join();
  EXPECT_THROW(session.push_codes(1, codes.data(), 1024, sums.data(), contributions.data()), TransportError);
}

TEST(Session, CloseWhileOperationsFly) {
  for (int i = 0; i < 20; ++i) {
    const Server server(2);
    Session session(config_of(server, 0, 1), udp());
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

TEST(Session, ADeadlineFailsEverythingInTheSameWay) {
  const Server server(2);
  SessionConfig config = config_of(server, 0, 2);  // the other worker never comes
  config.operation_timeout = Duration(300'000);
  Session session(config, udp());
  ASSERT_TRUE(session.wait_connected(kLongEnough));
  std::vector<Buffers> buffers(4, Buffers(7));
  std::vector<Session::OperationPtr> operations;
  for (Buffers& part : buffers) operations.push_back(part.push(session, static_cast<std::uint16_t>(operations.size())));
  for (const Session::OperationPtr& operation : operations) {
    EXPECT_THROW(session.wait(operation, kLongEnough), DeadlineError);
    EXPECT_EQ(operation->failure()->message, operations.front()->failure()->message);
  }
  EXPECT_THROW(buffers[0].push(session, 4), DeadlineError);
}

TEST(Session, NoServerIsADeadlineError) {
  std::unique_ptr<io::UdpIo> silent = io::make_udp_io({.local = kLoopback});
  std::vector<std::uint16_t> values{0, 1};
  SessionConfig config{.table = LookupTable(1, values)};
  config.servers = {silent->local()};
  config.connect_timeout = kLongEnough;
  Session session(config, udp(), Clock::now() - kLongEnough);
  EXPECT_THROW(session.wait_connected(kLongEnough / 2), DeadlineError);
}

}  // namespace
}  // namespace thc::testing
