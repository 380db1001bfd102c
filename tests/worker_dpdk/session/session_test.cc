// Sessions with their polling threads over kernel UDP, against the server's packet handling in a thread of this
// process.
#include <gtest/gtest.h>

#include "session_fixture.h"

namespace thc::testing {
namespace {

TEST(Session, ExactSums) {
  const Server server;
  push_and_check(server, {1, 1, 1, 1}, 0);
}

TEST(Session, ExactSumsWhereAPacketMustBeAMultipleOf128Codes) {
  const Server server(1, 128);  // as a switch; 100,000 codes and 100 norms end in the middle of a multiple
  push_and_check(server, {1, 1, 1}, 0);
}

TEST(Session, EveryHelloReachesItsShard) {
  const Server server(32);
  Session session(config_of(server, 0, 1), udp());
  ASSERT_TRUE(session.wait_connected(kLongEnough));
  EXPECT_GE(session.count(Count::kHelloSent), 32U);  // more where answers come late, as on a busy machine
  EXPECT_EQ(server.misdirected(), 0U);
}

TEST(Session, ExactSumsWithFaultsInEachDirection) {
  const Server server;
  push_and_check(server, {1, 1, 1}, 0.01);
}

TEST(Session, CloseFailsWhatIsInFlightFromAnotherThread) {
  const Server server;
  Session session(config_of(server, 0, 2), udp());
  ASSERT_TRUE(session.wait_connected(kLongEnough));
  const std::vector<std::uint8_t> codes(512);
  std::vector<std::uint8_t> sums(1024);
  std::vector<std::uint8_t> contributions(1);
  const auto handle = session.push_codes(0, codes, 1024, sums.data(), contributions);
  EXPECT_FALSE(session.wait(handle, Duration(1'000)));
  std::thread closer([&] { session.close(); });
  EXPECT_THROW(session.wait(handle, kLongEnough), TransportError);
  closer.join();
  EXPECT_THROW(session.push_codes(1, codes, 1024, sums.data(), contributions), TransportError);
}

TEST(Session, NoServerIsADeadlineError) {
  std::unique_ptr<io::UdpIo> silent = io::make_udp_io({.local = kLoopback});
  std::vector<std::uint16_t> values{0, 1};
  SessionConfig config{.table = LookupTable(1, values)};
  config.servers = {silent->local()};
  config.connect_timeout = Duration(200'000);
  Session session(config, udp());
  EXPECT_THROW(session.wait_connected(kLongEnough), DeadlineError);
}

TEST(Session, RefusesBuffersThatDoNotFit) {
  const Server server;
  Session session(config_of(server, 0, 1), udp());
  const std::vector<std::uint8_t> codes(512);
  std::vector<std::uint8_t> sums(1024);
  std::vector<std::uint8_t> contributions(2);
  EXPECT_THROW(session.push_codes(0, codes, 1022, sums.data(), {contributions.data(), 1}), InputError);
  EXPECT_THROW(session.push_codes(0, codes, 1024, sums.data(), contributions), InputError);
}

}  // namespace
}  // namespace thc::testing
