// Properties of DPDK alone: ARP with a real kernel, broken frames from the wire, set-up errors.
#include "io/dpdk_io.h"

#include <gtest/gtest.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "io/address.h"
#include "io/frame.h"
#include "io/udp_io.h"
#include "io/udp_socket.h"
#include "test_network.h"
#include "thc/errors.h"

namespace thc::io::test {
namespace {

/// Puts frames on the wire as they are.
class RawInterface {
 public:
  explicit RawInterface(const char* interface) : fd_(socket(AF_PACKET, SOCK_RAW, 0)) {
    address_.sll_family = AF_PACKET;
    address_.sll_ifindex = static_cast<int>(if_nametoindex(interface));
  }
  void send(std::span<const std::uint8_t> frame) {
    ASSERT_EQ(
        sendto(fd_.get(), frame.data(), frame.size(), 0, reinterpret_cast<const sockaddr*>(&address_), sizeof address_),
        static_cast<ssize_t>(frame.size()));
  }

 private:
  FileDescriptor fd_;
  sockaddr_ll address_{};
};

class DpdkBesideKernelTest : public testing::Test {
 protected:
  void SetUp() override {
    const TestNetwork& network = TestNetwork::instance();
    for (const std::string& reason : {network.veth_missing(), network.dpdk_missing()}) {
      if (!reason.empty()) GTEST_SKIP() << reason;
    }
    dpdk = network.af_packet_beside_kernel();
    kernel = make_udp_io({.local = {parse_ipv4("10.99.0.1"), 0}});
  }

  // Datagrams both ways; the kernel finds our MAC by ARP and we find its.
  void greet() {
    std::array<std::uint8_t, 5> hello{'h', 'e', 'l', 'l', '0'};
    Endpoint from;
    std::string text;
    const auto is_last = [&] { return std::ranges::equal(text, hello); };
    // The kernel drops a datagram when ARP is not answered for three seconds; of later ones none may stay on the way.
    for (int attempt = 0; attempt < 5 && !is_last(); ++attempt) {
      hello.back() = static_cast<std::uint8_t>('0' + attempt);
      kernel->send(dpdk->local(), hello, {});
      kernel->flush();
      do {
        text = receive_one(*dpdk, &from, std::chrono::seconds(4));
      } while (!text.empty() && !is_last());
    }
    ASSERT_TRUE(is_last()) << text;
    ASSERT_EQ(from, kernel->local());
    ASSERT_TRUE(dpdk->send(kernel->local(), hello, {}));
    dpdk->flush();
    text = receive_one(*kernel, &from);
    ASSERT_TRUE(is_last()) << text;
    ASSERT_EQ(from, dpdk->local());
  }

  // Polls until `counter` has reached `value`.
  void poll_until(const std::uint64_t& counter, std::uint64_t value) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    std::array<RxPacket, 32> packets;
    while (counter < value && std::chrono::steady_clock::now() < deadline) EXPECT_EQ(dpdk->receive(packets), 0U);
    EXPECT_EQ(counter, value);
  }

  // The Ethernet header of a datagram that the DPDK side sends to `to`; nothing when none reaches the kernel's end.
  std::optional<EthernetHeader> sent_to(Endpoint to) {
    const FileDescriptor sniffer(socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, htons(kEtherTypeIpv4)));
    const std::array<std::uint8_t, 5> data{};
    if (!dpdk->send(to, data, {})) return std::nullopt;
    dpdk->flush();
    UdpFrameHeader frame;
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (std::chrono::steady_clock::now() < deadline) {
      const ssize_t bytes = recv(sniffer.get(), &frame, sizeof frame, 0);
      if (bytes == static_cast<ssize_t>(sizeof frame) && frame.ip.destination == to.ip.ipv4()) return frame.ethernet;
      if (bytes < 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return std::nullopt;
  }

  // A datagram of 100 bytes for the DPDK side. Call greet() before.
  std::vector<std::uint8_t> frame_from(Endpoint from, const MacAddress& mac) {
    UdpFrameHeader header =
        make_frame_template(mac, from, sent_to(kernel->local()).value().source, dpdk->local().ip.ipv4());
    complete_frame(header, dpdk->local().port, 100);
    std::vector<std::uint8_t> frame(sizeof header + 100);
    std::copy_n(reinterpret_cast<const std::uint8_t*>(&header), sizeof header, frame.begin());
    return frame;
  }

  static constexpr Endpoint kStranger{0x0a630009, 7};  // the gateway, which only raw frames come from
  static constexpr Endpoint kBeyond{0x0a000001, 7};    // on another network

  std::unique_ptr<PacketIo> dpdk;
  std::unique_ptr<UdpIo> kernel;
};

TEST_F(DpdkBesideKernelTest, AnswersArpAndLearnsWhoSent) { greet(); }

TEST_F(DpdkBesideKernelTest, MarksOfFullQueuesArrive) {
  greet();
  std::vector<std::uint8_t> frame = frame_from(kStranger, {2, 0, 0, 0, 0, 9});
  auto* header = reinterpret_cast<UdpFrameHeader*>(frame.data());
  header->ip.type_of_service = kEcnCongestion;
  complete_frame(*header, dpdk->local().port, 100);
  RawInterface wire(TestNetwork::kKernelInterface);
  wire.send(frame);
  bool congested = false;
  ASSERT_EQ(receive_each(*dpdk, 1, [&](const RxPacket& packet) { congested = packet.congested; }), 1U);
  EXPECT_TRUE(congested);
}

TEST_F(DpdkBesideKernelTest, AsksForAnUnknownNeighbourAndCountsWhatItCouldNotSend) {
  const std::array<std::uint8_t, 5> data{};
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  EXPECT_FALSE(dpdk->send(kernel->local(), data, {}));
  EXPECT_EQ(dpdk->counters().tx_no_neighbour, 1U);
  std::array<RxPacket, 32> packets;
  while (!dpdk->send(kernel->local(), data, {})) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "ARP was never answered";
    dpdk->receive(packets);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  dpdk->flush();
  EXPECT_EQ(receive_one(*kernel).size(), data.size());
}

TEST_F(DpdkBesideKernelTest, CutAndBrokenFramesAreCountedAndDropped) {
  greet();
  const std::vector<std::uint8_t> good = frame_from(kStranger, {2, 0, 0, 0, 0, 9});
  RawInterface wire(TestNetwork::kKernelInterface);
  const IoCounters& counters = dpdk->counters();

  const std::uint64_t malformed = counters.rx_malformed;
  std::uint64_t sent = 0;
  for (std::size_t size_bytes = 15; size_bytes < good.size();
       size_bytes += 3, ++sent) {  // 14: the least of a raw socket
    wire.send({good.data(), size_bytes});
  }
  poll_until(counters.rx_malformed, malformed + sent);

  const std::uint64_t other = counters.rx_other;
  std::vector<std::uint8_t> other_port = good;
  other_port[36] ^= 1;
  wire.send(other_port);
  poll_until(counters.rx_other, other + 1);

  wire.send(good);
  EXPECT_EQ(receive_one(*dpdk).size(), 100U);
}

// A worker that restarts on a virtual device has its address again but another MAC address.
TEST_F(DpdkBesideKernelTest, FollowsANeighbourToItsNewMacAddress) {
  greet();
  RawInterface wire(TestNetwork::kKernelInterface);
  for (const std::uint8_t last : {1, 2, 1}) {
    const MacAddress mac{2, 0, 0, 0, 7, last};
    wire.send(frame_from(kStranger, mac));
    ASSERT_EQ(receive_one(*dpdk).size(), 100U);
    const auto answer = sent_to(kStranger);
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->destination, mac);
  }
}

TEST_F(DpdkBesideKernelTest, BelievesAnnouncementsOfNeighboursItKnows) {
  greet();
  RawInterface wire(TestNetwork::kKernelInterface);
  wire.send(frame_from(kStranger, {2, 0, 0, 0, 8, 1}));
  ASSERT_EQ(receive_one(*dpdk).size(), 100U);
  EXPECT_TRUE(sent_to(kBeyond));
  const MacAddress new_mac{2, 0, 0, 0, 8, 2};
  const auto announce = [&](std::uint32_t ip) {  // gratuitous ARP
    ArpFrame frame = make_arp(kArpRequest, new_mac, ip, kBroadcastMac, ip);
    const std::uint64_t other = dpdk->counters().rx_other;
    wire.send({reinterpret_cast<const std::uint8_t*>(&frame), sizeof frame});
    poll_until(dpdk->counters().rx_other, other + 1);
  };
  announce(kStranger.ip.ipv4());
  announce(kStranger.ip.ipv4() + 1);
  for (const Endpoint to : {kStranger, kBeyond}) {
    const auto answer = sent_to(to);
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->destination, new_mac);
  }
  EXPECT_FALSE(sent_to({kStranger.ip.ipv4() + 1, 7})) << "learned an address nobody here talks to";
}

class DpdkSetUpTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!TestNetwork::instance().dpdk_missing().empty()) GTEST_SKIP() << TestNetwork::instance().dpdk_missing();
  }

  DpdkConfig config = TestNetwork::instance().dpdk_config("net_memif0", 97, 1);
};

TEST_F(DpdkSetUpTest, AnUnknownDeviceAndALongPrefixAreRefused) {
  DpdkConfig bad = config;
  bad.devices = {"net_nothing"};
  expect_refused<DpdkUnavailableError>(bad, "net_memif0");
  config.prefix_length = 280;
  expect_refused<ConfigurationError>(config, "prefix length");
}

TEST_F(DpdkSetUpTest, ADeviceHasOneUser) {
  const auto user = make_dpdk_io(config);
  expect_refused<ConfigurationError>(config, "in use");
}

TEST_F(DpdkSetUpTest, EalStartsOnce) {
  config.eal_args.emplace_back("--vdev=net_null0");
  expect_refused<DpdkUnavailableError>(config, "already");
}

TEST_F(DpdkSetUpTest, MemifClientWithoutServerGivesUp) {
  const DpdkConfig client = TestNetwork::instance().dpdk_config("net_memif2", 97, 2);
  expect_refused<DpdkUnavailableError>(client, "role=server");
}

TEST_F(DpdkSetUpTest, JumboFramesArriveWhole) {
  DpdkConfig peer = TestNetwork::instance().dpdk_config("net_memif1", 97, 2);
  config.mtu_bytes = peer.mtu_bytes = 9000;
  const auto receiver = make_dpdk_io(config);
  const auto sender = make_dpdk_io(peer);
  ASSERT_EQ(sender->max_datagram_bytes(receiver->local()), 8972U);
  std::string text(8972, '?');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7 + i / 256);
  std::string received;
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (received.empty() && std::chrono::steady_clock::now() < deadline) {  // the link and ARP take a moment
    sender->send(receiver->local(), {}, {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
    sender->flush();
    received = receive_one(*receiver, nullptr, std::chrono::milliseconds(100));
    std::array<RxPacket, 8> answers;
    sender->receive(answers);
  }
  EXPECT_EQ(received, text);
}

// test_dpdk.py runs this, and others, many times.
TEST_F(DpdkSetUpTest, BothEndsOfAMemifMayCloseAtOnce) {
  for (int round = 0; round < 48; ++round) {
    IoPair pair = TestNetwork::instance().memif_pair();
    if (round % 3 == 0) pair.first.reset();
    if (round % 3 == 1) pair.second.reset();
    const std::jthread other([&] { pair.first.reset(); });
    pair.second.reset();
  }
}

TEST_F(DpdkSetUpTest, AnMtuThatTheDeviceDoesNotTakeIsRefused) {
  if (!TestNetwork::instance().veth_missing().empty()) GTEST_SKIP() << TestNetwork::instance().veth_missing();
  DpdkConfig jumbo = TestNetwork::instance().dpdk_config("net_af_packet0", 98, 1);
  jumbo.mtu_bytes = 9000;
  expect_refused<ConfigurationError>(jumbo, "smaller MTU");
}

TEST(DpdkAvailabilityTest, TheBackEndLoadsInABuildThatHasIt) {
#ifdef THC_HAVE_DPDK
  EXPECT_TRUE(dpdk_available());
#else
  EXPECT_FALSE(dpdk_available());
  EXPECT_THROW(make_dpdk_io({}), DpdkUnavailableError);
#endif
}

}  // namespace
}  // namespace thc::io::test
