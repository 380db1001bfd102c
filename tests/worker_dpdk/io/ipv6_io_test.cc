// IPv6 over kernel UDP: one socket for both versions, own addresses, limits of a path.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "io/address.h"
#include "io/udp_io.h"
#include "test_network.h"
#include "thc/errors.h"

namespace thc::io::test {
namespace {

constexpr IpAddress kLoopback4(0x7f000001);
constexpr IpAddress kSecond(0xfd00'0000'0000'0007, 5);  // of lo, too

class Ipv6IoTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string& reason = TestNetwork::instance().veth_missing(); !reason.empty()) GTEST_SKIP() << reason;
    // The kernel adds an address's local route later, and drops packets to the address until then.
    // NOLINTNEXTLINE(bugprone-command-processor): in the network namespace of this program
    if (std::system("ip -6 addr replace fd00:0:0:7::5/128 dev lo nodad 2>/dev/null && timeout 10 sh -c "
                    "'until ip -6 route show table local | grep -q fd00:0:0:7::5; do sleep .01; done'") != 0) {
      GTEST_SKIP() << "this kernel has no IPv6, or it is off (net.ipv6.conf.all.disable_ipv6)";
    }
  }
};

TEST_F(Ipv6IoTest, OneSocketSpeaksBothAndAnswersFromWhereItWasAsked) {
  const auto server = make_udp_io({.local = {}, .answers = true});
  EXPECT_EQ(to_string(server->local()), "[::]:" + std::to_string(server->local().port));
  const std::vector<std::uint8_t> request(40);
  const std::vector<std::uint8_t> answer(1056);
  for (const IpAddress asked : {kLoopback4, IpAddress(0x7f000009), kIpv6Loopback, kSecond}) {
    const auto peer = make_udp_io({.local = {}});
    const Endpoint to{asked, server->local().port};
    ASSERT_TRUE(peer->send(to, request, {}));
    peer->flush();
    Endpoint asker;
    ASSERT_EQ(receive_one(*server, &asker).size(), request.size()) << to_string(to);
    EXPECT_EQ(asker.own_ip, asked) << to_string(asker.own_ip);
    EXPECT_EQ(server->simplify(asker).own_ip, asked == IpAddress(0x7f000009) ? asked : IpAddress());
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(server->send(asker, {}, answer));  // merged
    server->flush();
    for (int i = 0; i < 3; ++i) {
      Endpoint from;
      ASSERT_EQ(receive_one(*peer, &from).size(), answer.size()) << to_string(to);
      EXPECT_EQ(to_string(from), to_string(to));
    }
    EXPECT_TRUE(server->is_own_host(to));
  }
  EXPECT_TRUE(server->gso_active());
}

TEST_F(Ipv6IoTest, KnowsWhatThePathTakes) {
  // NOLINTBEGIN(bugprone-command-processor): in the network namespace of this program
  const auto io = make_udp_io({.local = {}});
  ASSERT_EQ(std::system("ip -6 addr replace fd00:0:0:9::1/64 dev thc_kernel nodad"), 0);
  EXPECT_EQ(io->max_datagram_bytes({0x0a630002, 5}), 1472U);
  EXPECT_EQ(io->max_datagram_bytes({{0xfd00'0000'0000'0009, 2}, 5}), 1452U);
  EXPECT_EQ(io->common_datagram_bytes({{0xfd00'0000'0000'0009, 1}, 5}), 1452U);
  EXPECT_FALSE(io->is_own_host({{0xfd00'0000'0000'0009, 2}, 5}));
  ASSERT_EQ(std::system("ip link set thc_kernel mtu 1280"), 0);
  EXPECT_EQ(io->max_datagram_bytes({{0xfd00'0000'0000'0009, 2}, 5}), 1232U);
  ASSERT_EQ(std::system("ip link set thc_kernel mtu 1500 && ip -6 addr flush dev thc_kernel"), 0);
  // NOLINTEND(bugprone-command-processor)
}

TEST_F(Ipv6IoTest, OfOneVersionItRefusesTheOther) {
  const auto ipv4 = make_udp_io({.local = {0, 0}});
  const auto ipv6 = make_udp_io({.local = {kSecond, 0}});
  const std::array<std::uint8_t, 10> payload{};
  for (const auto& [sender, to] : {std::pair{ipv4.get(), kIpv6Loopback}, std::pair{ipv6.get(), kLoopback4}}) {
    sender->send({to, 9}, {}, payload);
    sender->flush();
    EXPECT_EQ(sender->counters().tx_errors, 1U) << to_string(to);
  }
  EXPECT_THROW(make_udp_io({.local = {ipv6->local().ip, ipv6->local().port}}), TransportError);
}

}  // namespace
}  // namespace thc::io::test
