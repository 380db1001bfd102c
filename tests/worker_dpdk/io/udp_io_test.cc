// Properties of kernel UDP alone: ports, merging, ports in use, waking up.
#include "io/udp_io.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "io/address.h"
#include "io/faulty_io.h"
#include "io/socket_address.h"
#include "io/udp_socket.h"
#include "test_network.h"
#include "thc/errors.h"
#include "thc/wire_layout.h"

namespace thc::io::test {
namespace {

std::uint32_t slot_of(const RxPacket& packet) {
  wire::Header header;
  std::memcpy(&header, packet.data, sizeof header);
  return header.slot;
}

void expect_nothing_left(PacketIo& io) {
  std::array<RxPacket, 1> packets;
  EXPECT_EQ(io.receive(packets), 0U);
}

TEST(UdpIoTest, PortInUseNamesThePortAndAWayOut) {
  const auto holders = make_udp_ios({.local = {kLoopback, 0}}, 2);
  const Endpoint first = holders[0]->local();
  const Endpoint second = holders[1]->local();
  const std::array<std::pair<Endpoint, std::uint16_t>, 4> taken{{{first, 1}, {first, 2}, {second, 1}, {second, 2}}};
  for (const auto& [local, count] : taken) {
    const std::string port = std::to_string(local.port);
    try {
      make_udp_ios({.local = local}, count);
      FAIL() << "took port " << port << ", which is in use, as the first of " << count;
    } catch (const TransportError& error) {
      EXPECT_NE(std::string(error.what()).find("port " + port), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("another port"), std::string::npos) << error.what();
    }
  }
}

TEST(UdpIoTest, RefusesAnAddressOfAnotherMachine) {
  EXPECT_THROW(make_udp_io({.local = {parse_ipv4("192.0.2.1"), 0}}), TransportError);
}

TEST(UdpIoTest, PortsFollowEachOther) {
  for (const std::uint16_t count : {1, 2, 40}) {
    const auto ios = make_udp_ios({.local = {kLoopback, 0}}, count);
    ASSERT_EQ(ios.size(), count);
    for (std::uint16_t i = 0; i < count; ++i) EXPECT_EQ(ios[i]->local().port, ios[0]->local().port + i);
  }
}

TEST(UdpIoTest, RefusesPortsThatThereAreNot) {
  EXPECT_THROW(make_udp_ios({.local = {kLoopback, 65534}}, 3), ConfigurationError);
  EXPECT_THROW(make_udp_ios({.local = {kLoopback, 0}}, 0), ConfigurationError);
}

TEST(UdpIoTest, InterleavedDestinationsStayInOrder) {
  const auto sender = make_udp_io({.local = {kLoopback, 0}});
  std::array<std::unique_ptr<UdpIo>, 4> receivers;
  for (auto& receiver : receivers) receiver = make_udp_io({.local = {kLoopback, 0}});
  const std::array<std::uint8_t, 1024> payload{};
  for (std::uint32_t slot = 0; slot < 100; ++slot) {
    wire::Header header;
    header.slot = slot;
    for (const auto& receiver : receivers) ASSERT_TRUE(sender->send(receiver->local(), bytes_of(header), payload));
  }
  sender->flush();
  EXPECT_EQ(sender->counters().tx_packets, 400U);
  for (const auto& receiver : receivers) {
    std::uint32_t expected = 0;
    receive_each(*receiver, 100, [&](const RxPacket& packet) { EXPECT_EQ(slot_of(packet), expected++); });
    EXPECT_EQ(expected, 100U);
    expect_nothing_left(*receiver);
  }
}

TEST(UdpIoTest, AbsentReceiverHarmsNobody) {
  const auto sender = make_udp_io({.local = {kLoopback, 0}});
  const auto receiver = make_udp_io({.local = {kLoopback, 0}});
  Endpoint nobody;
  {
    nobody = make_udp_io({.local = {kLoopback, 0}})->local();
  }
  const std::array<std::uint8_t, 40> data{};
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(sender->send(nobody, data, {}));
    EXPECT_TRUE(sender->send(receiver->local(), data, {}));
    sender->flush();
  }
  for (int i = 0; i < 10; ++i) EXPECT_EQ(receive_one(*receiver).size(), data.size());
  EXPECT_TRUE(sender->gso_active());
}

/// Peers ask `own` at different addresses; `own` answers each `count` times in one flush. Answers must come from the
/// address that the peer asked.
void expect_answers_from_where_asked(UdpIo& own, std::span<const std::unique_ptr<UdpIo>> peers, std::size_t count,
                                     std::size_t size_bytes) {
  const std::vector<std::uint8_t> data(size_bytes, 5);
  const std::span<const std::uint8_t> request = std::span(data).first(40);
  for (std::uint32_t i = 0; i < peers.size(); ++i) {
    ASSERT_TRUE(peers[i]->send({kLoopback + 1 + i, own.local().port}, request, {}));
    peers[i]->flush();
  }
  std::vector<Endpoint> askers;
  receive_each(own, peers.size(), [&](const RxPacket& packet) { askers.push_back(packet.from); });
  ASSERT_EQ(askers.size(), peers.size());
  for (std::size_t n = 0; n < count; ++n) {
    for (const Endpoint asker : askers) ASSERT_TRUE(own.send(asker, {}, data));
  }
  own.flush();
  for (std::uint32_t i = 0; i < peers.size(); ++i) {
    const Endpoint asked{kLoopback + 1 + i, own.local().port};
    for (std::size_t n = 0; n < count; ++n) {
      Endpoint from;
      ASSERT_EQ(receive_one(*peers[i], &from).size(), size_bytes) << "datagram " << n << " for peer " << i;
      ASSERT_EQ(to_string(from), to_string(asked)) << "datagram " << n;
    }
  }
}

class SecondAddressTest : public testing::TestWithParam<bool> {
 protected:
  // All of 127.0.0.0/8 is the host's own; unasked, the kernel sends from 127.0.0.1.
  UdpConfig config(std::uint32_t ip) const {
    return {.local = {ip, 0}, .gso = GetParam(), .gro = GetParam(), .answers = ip == 0};
  }
  std::array<std::unique_ptr<UdpIo>, 3> peers{make_udp_io(config(kLoopback)), make_udp_io(config(kLoopback)),
                                              make_udp_io(config(kLoopback + 9))};
};

TEST_P(SecondAddressTest, AnswersLeaveFromTheAddressThatWasAsked) {
  const auto own = make_udp_io(config(0));
  for (const std::size_t count : {1, 3, 40}) {
    ASSERT_NO_FATAL_FAILURE(expect_answers_from_where_asked(*own, peers, count, 1056));
  }
  EXPECT_EQ(own->gso_active(), GetParam());
}

// One peer may ask at several addresses: its answers are not merged then.
TEST_P(SecondAddressTest, OnePeerGetsAnswersFromEachAddressThatItAsked) {
  const auto own = make_udp_io(config(0));
  const auto& peer = peers.front();
  const std::array<std::uint8_t, 40> data{};
  for (std::uint32_t i = 0; i < 8; ++i) ASSERT_TRUE(peer->send({kLoopback + i % 4, own->local().port}, data, {}));
  peer->flush();
  const auto answer = [&](const RxPacket& packet) { own->send(packet.from, data, {}); };
  ASSERT_EQ(receive_each(*own, 8, answer), 8U);
  own->flush();
  std::array<int, 4> answers{};
  receive_each(*peer, 8, [&](const RxPacket& packet) { ++answers.at(packet.from.ip.ipv4() - kLoopback); });
  EXPECT_EQ(answers, (std::array{2, 2, 2, 2}));
}

TEST_P(SecondAddressTest, AnAddressThatIsGoneHarmsNobody) {
  const auto own = make_udp_io(config(0));
  Endpoint asker = peers.front()->local();
  asker.own_ip = parse_ipv4("192.0.2.1");
  const std::array<std::uint8_t, 40> data{};
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(own->send(asker, data, {}));
  EXPECT_TRUE(own->send(peers.back()->local(), data, {}));
  own->flush();
  EXPECT_EQ(receive_one(*peers.back()).size(), data.size());
  EXPECT_EQ(own->counters().tx_errors, 3U);
  EXPECT_EQ(own->gso_active(), GetParam());
}

TEST_P(SecondAddressTest, WhatTheKernelChoosesNeedNotBeSaid) {
  const auto own = make_udp_io(config(0));
  Endpoint asker = peers.front()->local();
  asker.own_ip = kLoopback;
  EXPECT_EQ(own->simplify(asker).own_ip, IpAddress());
  asker.own_ip = kLoopback + 1;
  EXPECT_EQ(own->simplify(asker).own_ip, asker.own_ip);
  EXPECT_EQ(own->simplify(asker), asker);
  asker.ip = parse_ipv4("240.0.0.1");  // where no route leads to
  EXPECT_EQ(own->simplify(asker).own_ip, asker.own_ip);
}

INSTANTIATE_TEST_SUITE_P(Merging, SecondAddressTest, testing::Bool());

// Merged datagrams above the MTU of the way go one by one then: from the same address.
TEST(UdpIoTest, AnswersThatCannotBeMergedLeaveFromTheAddressThatWasAsked) {
  if (const std::string& reason = TestNetwork::instance().veth_missing(); !reason.empty()) GTEST_SKIP() << reason;
  // NOLINTBEGIN(bugprone-command-processor): in the network namespace of this program
  ASSERT_EQ(std::system("ip link set lo mtu 1500"), 0);
  const std::array<std::unique_ptr<UdpIo>, 2> peers{make_udp_io({.local = {kLoopback, 0}}),
                                                    make_udp_io({.local = {kLoopback, 0}})};
  const auto own = make_udp_io({.local = {0, 0}, .answers = true});
  expect_answers_from_where_asked(*own, peers, 3, 2000);
  EXPECT_FALSE(own->gso_active());
  ASSERT_EQ(std::system("ip link set lo mtu 65536"), 0);
  // NOLINTEND(bugprone-command-processor)
}

// Merged datagrams above the MTU of the way are refused by the kernel; they must still arrive, one by one.
TEST(UdpIoTest, GivesUpMergingWhenTheKernelRefuses) {
  if (const std::string& reason = TestNetwork::instance().veth_missing(); !reason.empty()) GTEST_SKIP() << reason;
  const auto sender = make_udp_io({.local = {0, 0}});
  const std::array<std::uint8_t, 2000> payload{};  // above the 1500 of the veth
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(sender->send({parse_ipv4("10.99.0.77"), 9}, {}, payload));
  sender->flush();
  EXPECT_FALSE(sender->gso_active());
  EXPECT_EQ(sender->counters().tx_packets, 3U);
}

// Port 0 is refused by the kernel with the words it has for a device without GSO. Anybody can send from it.
TEST(UdpIoTest, PortZeroDoesNotEndMerging) {
  const auto sender = make_udp_io({.local = {kLoopback, 0}});
  const std::array<std::uint8_t, 40> data{};
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(sender->send({kLoopback, 0}, data, {}));
  sender->flush();
  EXPECT_TRUE(sender->gso_active());
  EXPECT_EQ(sender->counters().tx_errors, 3U);
}

TEST(UdpIoTest, DropsDatagramsFromPortZero) {
  const auto receiver = make_udp_io({.local = {kLoopback, 0}});
  const int raw = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_UDP);
  if (raw < 0) GTEST_SKIP() << "raw sockets need root";
  const FileDescriptor owner(raw);
  struct {
    udphdr header;
    std::array<std::uint8_t, 32> data;
  } datagram{};
  datagram.header.dest = htons(receiver->local().port);
  datagram.header.len = htons(sizeof datagram);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(kLoopback);
  ASSERT_EQ(sendto(raw, &datagram, sizeof datagram, 0, reinterpret_cast<sockaddr*>(&to), sizeof to),
            static_cast<ssize_t>(sizeof datagram));
  EXPECT_EQ(receive_one(*receiver, nullptr, std::chrono::milliseconds(200)), "");
  EXPECT_EQ(receiver->counters().rx_malformed, 1U);
}

class FullBufferTest : public testing::TestWithParam<wire::MessageType> {};

// Datagrams to addresses without an ARP answer stay in the one send buffer for seconds.
TEST_P(FullBufferTest, DeadNeighboursDoNotHoldUpALiveOne) {
  if (const std::string& reason = TestNetwork::instance().veth_missing(); !reason.empty()) GTEST_SKIP() << reason;
  const std::uint32_t own_ip = parse_ipv4("10.99.0.1");
  const auto sender =
      make_udp_io({.local = {own_ip, 0}, .send_buffer_bytes = 212'992});  // the limit without privileges
  const auto live = make_udp_io({.local = {own_ip, 0}});
  const std::array<std::uint8_t, 1024> payload{};
  wire::Header header{};
  live->send(sender->local(), bytes_of(header), {});
  live->flush();
  ASSERT_EQ(receive_one(*sender).size(), sizeof header);
  const auto start = std::chrono::steady_clock::now();
  for (std::uint32_t round = 0; round < 200; ++round) {
    header.message_type = static_cast<std::uint8_t>(GetParam());
    for (std::uint32_t dead = 0; dead < 63; ++dead) {
      sender->send({own_ip + 100 + dead, 5000}, bytes_of(header), payload);
    }
    header.message_type = static_cast<std::uint8_t>(wire::MessageType::kAggregate);
    header.slot = round;
    sender->send(live->local(), bytes_of(header), payload);
    sender->flush();
    ASSERT_EQ(receive_one(*live).size(), sizeof header + payload.size()) << "round " << round;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));  // 8 ms for each datagram took 100 s
  EXPECT_GT(sender->counters().tx_no_buffer, 0U);
}

INSTANTIATE_TEST_SUITE_P(Answers, FullBufferTest,
                         testing::Values(wire::MessageType::kAggregate, wire::MessageType::kError));

/// A plain socket that sends bursts, merged, with the ECN field as it is told.
void send_marked(Endpoint to, int second_byte, std::size_t segments) {
  const bool ipv4 = to.ip.is_ipv4();
  const FileDescriptor sender = open_udp_socket(to.ip);
  setsockopt(sender.get(), ipv4 ? IPPROTO_IP : IPPROTO_IPV6, ipv4 ? IP_TOS : IPV6_TCLASS, &second_byte,
             sizeof second_byte);
  const int segment_bytes = 100;
  setsockopt(sender.get(), SOL_UDP, UDP_SEGMENT, &segment_bytes, sizeof segment_bytes);
  const std::vector<std::uint8_t> data(segments * 100);
  const SocketAddress address(to, ipv4 ? AF_INET : AF_INET6);
  ASSERT_EQ(sendto(sender.get(), data.data(), data.size(), 0, address.get(), address.bytes()),
            static_cast<ssize_t>(data.size()));
}

struct Way {
  IpAddress local;  ///< all addresses, of IPv4 or of both versions
  IpAddress peer;
  IpAddress own;  ///< one of the host's
};

/// A server on all addresses has the most control messages: own address, segments and ECN field.
class MarksTest : public testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    if (const std::string reason = ipv6_missing(); GetParam().local == IpAddress() && !reason.empty()) {
      GTEST_SKIP() << reason;
    }
    server = make_udp_io({.local = {GetParam().local, 0}, .answers = true});
  }

  std::unique_ptr<UdpIo> server;
};

TEST_P(MarksTest, MarksOfFullQueuesArriveWithTheirDatagrams) {
  FaultyIo receiver(std::move(server), FaultConfig{});
  const Endpoint to{GetParam().own, receiver.local().port};
  std::vector<bool> marks;
  for (const int second_byte : {0, 1, 2, 3, 0xb8, 0xbb, 2}) {
    send_marked(to, second_byte, 5);
    receive_each(receiver, 5, [&](const RxPacket& packet) {
      marks.push_back(packet.congested);
      EXPECT_EQ(packet.congested, (second_byte & 3) == 3);
      EXPECT_EQ(packet.from.own_ip, to.ip);
    });
  }
  EXPECT_EQ(marks.size(), 7 * 5U);
}

TEST_P(MarksTest, WhatIsSentMayBeMarked) {
  const Way way = GetParam();
  const bool ipv4 = way.peer.is_ipv4();
  const FileDescriptor receiver = open_udp_socket(way.peer);
  const int on = 1;
  ASSERT_EQ(
      setsockopt(receiver.get(), ipv4 ? IPPROTO_IP : IPPROTO_IPV6, ipv4 ? IP_RECVTOS : IPV6_RECVTCLASS, &on, sizeof on),
      0);
  const Endpoint to = bind_udp_socket(receiver, {way.peer, 0});
  const std::array<std::uint8_t, 100> data{};
  for (int i = 0; i < 3; ++i) server->send({to.ip, to.port, way.own}, {}, data);  // merged, from a given address
  server->flush();
  for (int i = 0; i < 3; ++i) {
    std::array<std::uint8_t, 100> buffer;
    iovec vector{buffer.data(), buffer.size()};
    alignas(cmsghdr) std::array<std::uint8_t, 64> control;
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    ASSERT_EQ(recvmsg(receiver.get(), &message, 0), static_cast<ssize_t>(data.size())) << "datagram " << i;
    const cmsghdr* tos = CMSG_FIRSTHDR(&message);
    ASSERT_NE(tos, nullptr);
    EXPECT_EQ(*CMSG_DATA(tos), kEcnCapable);
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, MarksTest,
                         testing::Values(Way{0, kLoopback, kLoopback + 1}, Way{{}, kLoopback, kLoopback + 1},
                                         Way{{}, kIpv6Loopback, kIpv6Loopback}));

TEST(UdpIoTest, WhatIsHeldBackKeepsItsMark) {
  FaultyIo receiver(make_udp_io({.local = {kLoopback, 0}}), {.reorder = 1});
  send_marked(receiver.local(), kEcnCongestion, 1);
  bool congested = false;
  ASSERT_EQ(receive_each(receiver, 1, [&](const RxPacket& packet) { congested = packet.congested; }), 1U);
  EXPECT_TRUE(congested);
}

TEST(UdpIoTest, WakeEndsAWait) {
  const auto io = make_udp_io({.local = {kLoopback, 0}});
  std::thread waker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    io->wake();
  });
  const auto start = std::chrono::steady_clock::now();
  io->wait(std::chrono::minutes(4));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::minutes(1));
  waker.join();
}

TEST(UdpIoTest, LoopbackTakesTheLargestDatagramAndSaysSo) {
  const auto sender = make_udp_io({.local = {kLoopback, 0}});
  const auto receiver = make_udp_io({.local = {kLoopback, 0}});
  EXPECT_EQ(sender->max_datagram_bytes(receiver->local()), 65507U);
  const std::vector<std::uint8_t> largest(65507, 7);
  ASSERT_TRUE(sender->send(receiver->local(), {}, largest));
  sender->flush();
  EXPECT_EQ(receive_one(*receiver).size(), largest.size());
}

TEST(UdpIoTest, KnowsTheOwnHostAndSendsAsMuchAsAllTo) {
  const auto sender = make_udp_io({.local = {kLoopback, 0}});
  for (const Endpoint to : {Endpoint{kLoopback, 5000}, Endpoint{parse_ipv4("240.0.0.1"), 5000}}) {
    EXPECT_EQ(sender->common_datagram_bytes(to), sender->max_datagram_bytes(to));
    EXPECT_EQ(sender->is_own_host(to), to.ip == IpAddress(kLoopback));
  }
  EXPECT_TRUE(sender->is_own_host({kLoopback + 4, 5000}));
}

TEST(UdpIoTest, KnowsTheRouteWhenDescriptorsRunOut) {
  const auto sender = make_udp_io({.local = {kLoopback, 0}});
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none_left{.rlim_cur = 0, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none_left), 0);
  const std::size_t first = sender->max_datagram_bytes({kLoopback, 5000});
  const std::size_t no_route = sender->max_datagram_bytes({parse_ipv4("240.0.0.1"), 5000});
  const std::size_t again = sender->max_datagram_bytes({kLoopback + 1, 5000});
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(first, 65507U);
  EXPECT_EQ(no_route, 1472U);
  EXPECT_EQ(again, 65507U);
}

TEST(UdpIoTest, TellsTheReceiveBufferItGot) {
  const auto small = make_udp_io({.local = {kLoopback, 0}, .receive_buffer_bytes = 100'000});
  EXPECT_GE(small->receive_buffer_bytes(), 100'000U);
  EXPECT_LT(small->receive_buffer_bytes(), 300'000U);
}

TEST(AddressTest, ReadsAndRefuses) {
  EXPECT_EQ(parse_mac("02:00:5e:10:Ff:01"), (MacAddress{2, 0, 0x5e, 0x10, 0xff, 1}));
  for (const char* bad : {"", "02:00:5e:10:ff", "02:00:5e:10:ff:1", "02-00-5e-10-ff-01", "02:00:5e:10:ff:0g"}) {
    EXPECT_THROW(parse_mac(bad), ConfigurationError) << bad;
  }
}

}  // namespace
}  // namespace thc::io::test
