// What is particular to kernel UDP: ports, merging, ports in use, waking up.
#include "io/udp_io.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "io/address.h"
#include "test_network.h"
#include "thc/errors.h"
#include "thc/wire_layout.h"

namespace thc::io::test {
namespace {

constexpr std::uint32_t kLoopback = 0x7f000001;

std::span<const std::uint8_t> bytes_of(const wire::Header& header) {
  return {reinterpret_cast<const std::uint8_t*>(&header), sizeof header};
}

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
    for (std::uint16_t i = 0; i < count; ++i) {
      EXPECT_EQ(ios[i]->local().port, ios[0]->local().port + i);
    }
  }
}

TEST(UdpIoTest, RefusesPortsThatThereAreNot) {
  EXPECT_THROW(make_udp_ios({.local = {kLoopback, 65534}}, 3), ConfigurationError);
  EXPECT_THROW(make_udp_ios({.local = {kLoopback, 0}}, 0), ConfigurationError);
}

TEST(UdpIoTest, InterleavedDestinationsStayInOrder) {
  const auto sender = make_udp_io({.local = {kLoopback, 0}});
  std::array<std::unique_ptr<UdpIo>, 4> receivers;
  for (auto& receiver : receivers) {
    receiver = make_udp_io({.local = {kLoopback, 0}});
  }
  const std::array<std::uint8_t, 1024> payload{};
  for (std::uint32_t slot = 0; slot < 100; ++slot) {
    wire::Header header;
    header.slot = slot;
    for (const auto& receiver : receivers) {
      ASSERT_TRUE(sender->send(receiver->local(), bytes_of(header), payload));
    }
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
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(receive_one(*receiver).size(), data.size());
  }
  EXPECT_TRUE(sender->gso_active());
}

// Merged datagrams above the MTU of the way are refused by the kernel; they must still arrive, one by one.
TEST(UdpIoTest, GivesUpMergingWhenTheKernelRefuses) {
  if (const std::string& reason = TestNetwork::instance().veth_missing(); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  const auto sender = make_udp_io({.local = {0, 0}});
  const std::array<std::uint8_t, 2000> payload{};  // above the 1500 of the veth
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(sender->send({parse_ipv4("10.99.0.77"), 9}, {}, payload));
  }
  sender->flush();
  EXPECT_FALSE(sender->gso_active());
  EXPECT_EQ(sender->counters().tx_packets, 3U);
}

// Port 0 is refused by the kernel with the words it has for a device without GSO. Anybody can send from it.
TEST(UdpIoTest, PortZeroDoesNotEndMerging) {
  const auto sender = make_udp_io({.local = {kLoopback, 0}});
  const std::array<std::uint8_t, 40> data{};
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(sender->send({kLoopback, 0}, data, {}));
  }
  sender->flush();
  EXPECT_TRUE(sender->gso_active());
  EXPECT_EQ(sender->counters().tx_errors, 3U);
}

TEST(UdpIoTest, DropsDatagramsFromPortZero) {
  const auto receiver = make_udp_io({.local = {kLoopback, 0}});
  const int raw = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_UDP);
  if (raw < 0) {
    GTEST_SKIP() << "raw sockets need root";
  }
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

// Addresses that nobody answers ARP for keep what is sent to them in the one send buffer for seconds.
TEST_P(FullBufferTest, DeadNeighboursDoNotHoldUpALiveOne) {
  if (const std::string& reason = TestNetwork::instance().veth_missing(); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  const std::uint32_t own_ip = parse_ipv4("10.99.0.1");
  const auto sender = make_udp_io({.local = {own_ip, 0}, .send_buffer_bytes = 212'992});  // what everybody may have
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

TEST(UdpIoTest, WakeEndsAWait) {
  const auto io = make_udp_io({.local = {kLoopback, 0}});
  std::thread waker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    io->wake();
  });
  const auto start = std::chrono::steady_clock::now();
  io->wait(std::chrono::seconds(10));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
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

TEST(UdpIoTest, ToOtherHostsAndToLoopbackAllSendTheSame) {
  const auto sender = make_udp_io({.local = {kLoopback, 0}});
  const Endpoint loopback{kLoopback, 5000};
  EXPECT_EQ(sender->common_datagram_bytes(loopback), sender->max_datagram_bytes(loopback));
  const Endpoint elsewhere{parse_ipv4("240.0.0.1"), 5000};
  EXPECT_EQ(sender->common_datagram_bytes(elsewhere), sender->max_datagram_bytes(elsewhere));
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
  EXPECT_EQ(to_string(parse_endpoint("10.1.2.3:99", 1)), "10.1.2.3:99");
  EXPECT_EQ(parse_endpoint("10.1.2.3", 48865).port, 48865);
  EXPECT_EQ(to_string(parse_mac("02:00:5e:10:Ff:01")), "02:00:5e:10:ff:01");
  for (const char* bad : {"", "10.1.2", "10.1.2.3:", "10.1.2.3:65536", "10.1.2.3:1x", "host:1"}) {
    EXPECT_THROW(parse_endpoint(bad, 1), ConfigurationError) << bad;
  }
  for (const char* bad : {"", "02:00:5e:10:ff", "02:00:5e:10:ff:1", "02-00-5e-10-ff-01", "02:00:5e:10:ff:0g"}) {
    EXPECT_THROW(parse_mac(bad), ConfigurationError) << bad;
  }
}

}  // namespace
}  // namespace thc::io::test
