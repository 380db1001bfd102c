// The sender with a full send buffer, a full queue of the interface, and ICMP errors.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>

#include "io/address.h"
#include "io/udp_io.h"
#include "io/udp_socket.h"
#include "test_network.h"
#include "thc/wire_layout.h"

namespace thc::io::test {
namespace {

/// The output of a command; empty if it fails.
std::string output_of(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");  // NOLINT(bugprone-command-processor): the commands are constants
  std::string output;
  std::array<char, 4096> chunk;
  while (const std::size_t n = fread(chunk.data(), 1, chunk.size(), pipe)) output.append(chunk.data(), n);
  return pclose(pipe) == 0 ? output : "";
}

/// A link of its own, whose interface has a queue of `limit` behind a token bucket; 10.94.0.77 and up are on its far
/// end, which takes all and answers nothing.
class SlowLink {
 public:
  SlowLink(const std::string& rate, const std::string& limit, const std::string& burst) {
    output_of(
        "ip link add thc_slow type veth peer name thc_far && ip link set thc_far addrgenmode none up && "
        "ip link set thc_slow addrgenmode none up && ip addr add 10.94.0.1/24 dev thc_slow && "
        "tc qdisc add dev thc_slow root tbf rate " +
        rate + " burst " + burst + " limit " + limit);
    for (int host = 77; host < 81; ++host) {
      output_of("ip neigh add 10.94.0." + std::to_string(host) + " dev thc_slow nud permanent lladdr " +
                "02:00:00:00:00:" + std::to_string(host));
    }
  }
  SlowLink(const SlowLink&) = delete;
  SlowLink& operator=(const SlowLink&) = delete;
  ~SlowLink() { output_of("ip link del thc_slow"); }

  struct Count {
    unsigned long long sent = 0;
    unsigned long long dropped = 0;
  };
  /// Frames that have left and frames that found the queue full, once the queue is empty.
  static Count count() {
    Count count;
    unsigned long long waiting = 1;
    for (int tries = 0; tries < 1000 && waiting != 0; ++tries) {
      const std::string text = output_of("tc -s qdisc show dev thc_slow");
      const auto from = text.find(" Sent ");
      if (from == std::string::npos) return {};
      // A count of 0 fails the test. NOLINTNEXTLINE(cert-err34-c,bugprone-unchecked-string-to-number-conversion)
      std::sscanf(text.c_str() + from,
                  " Sent %*u bytes %llu pkt (dropped %llu, overlimits %*u requeues %*u) backlog %*[^ ] %llup",
                  &count.sent, &count.dropped, &waiting);
    }
    return count;
  }
};

class PacedTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string& reason = TestNetwork::instance().veth_missing(); !reason.empty()) GTEST_SKIP() << reason;
  }

  /// Datagrams of 1400 bytes from a worker, to four servers in turn: so many batches of 64.
  static void send_batches(UdpIo& sender, int batches) {
    wire::Header header{};
    header.message_type = static_cast<std::uint8_t>(wire::MessageType::kCodes);
    const std::array<std::uint8_t, 1400 - sizeof header> payload{};
    for (int batch = 0; batch < batches; ++batch) {
      for (std::uint32_t i = 0; i < 64; ++i) {
        sender.send({parse_ipv4("10.94.0.77") + i % 4, 5000}, bytes_of(header), payload);
      }
      sender.flush();
    }
  }
};

// 1280 datagrams, 1.8 MB, over a link that takes 25 MB/s and has a queue of 100 kB.
TEST_F(PacedTest, TheQueueOfTheInterfaceIsNotOverfilled) {
  const SlowLink link("200mbit", "100kb", "72kb");
  const auto sender = make_udp_io({.local = {parse_ipv4("10.94.0.1"), 0}});
  send_batches(*sender, 20);
  EXPECT_EQ(sender->counters().tx_packets, 1280U);
  EXPECT_EQ(sender->counters().tx_no_buffer, 0U);
  EXPECT_EQ(link.count().sent, 1280U);
}

// Another program fills the queue.
TEST_F(PacedTest, AFullQueueOfTheInterfaceIsNoLoss) {
  const SlowLink link("200mbit", "40kb", "72kb");
  const auto sender = make_udp_io({.local = {parse_ipv4("10.94.0.1"), 0}});
  send_batches(*sender, 1);  // messages of 16 datagrams fit, and messages of 64 would not
  wire::Header header{};
  header.message_type = static_cast<std::uint8_t>(wire::MessageType::kCodes);
  const std::array<std::uint8_t, 1400 - sizeof header> payload{};
  const FileDescriptor other = open_udp_socket(0);
  const sockaddr_in to{
      .sin_family = AF_INET, .sin_port = htons(9), .sin_addr = {htonl(parse_ipv4("10.94.0.77"))}, .sin_zero = {}};
  resize_send_buffer(other.get(), 4U << 20);
  for (int batch = 0; batch < 20; ++batch) {
    for (int i = 0; i < 100; ++i) {
      sendto(other.get(), payload.data(), payload.size(), 0, reinterpret_cast<const sockaddr*>(&to), sizeof to);
    }
    send_batches(*sender, 1);
  }
  EXPECT_EQ(sender->counters().tx_packets, 21 * 64U);
  EXPECT_EQ(sender->counters().tx_no_buffer, 0U);
  EXPECT_GT(link.count().dropped, 0U);  // the other program's, and frames that were sent again
}

// A message that no queue can hold as a whole leaves in pieces.
TEST_F(PacedTest, AQueueSmallerThanAMessageIsNoLoss) {
  const SlowLink link("200mbit", "10kb", "72kb");
  const auto sender = make_udp_io({.local = {parse_ipv4("10.94.0.1"), 0}});
  send_batches(*sender, 5);
  EXPECT_EQ(sender->counters().tx_packets, 320U);
  EXPECT_EQ(sender->counters().tx_no_buffer, 0U);
  EXPECT_TRUE(sender->gso_active());
}

// A worker's datagrams to an address without an ARP answer wait for seconds.
TEST_F(PacedTest, AServerWithoutANeighbourDoesNotHoldUpOthers) {
  const SlowLink link("200mbit", "100kb", "72kb");
  const auto sender = make_udp_io({.local = {parse_ipv4("10.94.0.1"), 0}});
  wire::Header header{};
  header.message_type = static_cast<std::uint8_t>(wire::MessageType::kCodes);
  const std::array<std::uint8_t, 1400 - sizeof header> payload{};
  for (int i = 0; i < 30; ++i) {
    sender->send({parse_ipv4("10.94.0.200"), 5000}, bytes_of(header), payload);
    sender->flush();
  }
  send_batches(*sender, 5);
  EXPECT_EQ(sender->counters().tx_no_buffer, 0U);
  EXPECT_GE(link.count().sent, 320U);
}

// Reports of all kinds are about earlier datagrams, each once, and take the place of no datagram.
class IcmpErrorTest : public testing::TestWithParam<std::array<std::uint8_t, 2>> {};

TEST_P(IcmpErrorTest, SaysNothingAboutOtherDatagrams) {
  const auto own = make_udp_io({.local = {kLoopback, 0}});
  const auto peer = make_udp_io({.local = {kLoopback, 0}});
  const FileDescriptor raw(socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_ICMP));
  if (raw.get() < 0) GTEST_SKIP() << "raw sockets need root";
  struct {
    std::array<std::uint8_t, 8> icmp;  // type, code, checksum, and the MTU
    std::array<std::uint8_t, 20> ip;   // of a datagram that `own` sent
    udphdr udp;
  } report{};
  report.icmp = {GetParam()[0], GetParam()[1], 0, 0, 0, 0, 0x05, 0x00};
  report.ip = {0x45, 0, 0, 128, 0, 0, 0x40, 0, 64, IPPROTO_UDP, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1};
  report.udp.source = htons(own->local().port);
  report.udp.dest = htons(peer->local().port);
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < sizeof report / 2; ++i) {
    std::uint16_t word;
    std::memcpy(&word, reinterpret_cast<const char*>(&report) + 2 * i, sizeof word);
    sum += word;
  }
  sum = (sum & 0xffff) + (sum >> 16);
  sum = ~((sum & 0xffff) + (sum >> 16));
  std::memcpy(&report.icmp[2], &sum, 2);
  const auto send_report = [&] {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(kLoopback);
    ASSERT_EQ(sendto(raw.get(), &report, sizeof report, 0, reinterpret_cast<sockaddr*>(&to), sizeof to),
              static_cast<ssize_t>(sizeof report));
  };

  const std::array<std::uint8_t, 1000> data{};
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 3; ++i) own->send(peer->local(), {}, data);  // merged
    send_report();
    own->flush();
    for (int i = 0; i < 3; ++i) EXPECT_EQ(receive_one(*peer).size(), data.size());
    peer->send(own->local(), {}, data);
    peer->flush();
    send_report();
    EXPECT_EQ(receive_one(*own).size(), data.size());
  }
  EXPECT_EQ(own->counters().tx_errors, 0U);
  EXPECT_TRUE(own->gso_active());

  // A report that nobody takes would end each wait at once, and many reports fill the receive buffer.
  for (int i = 0; i < 50; ++i) send_report();
  own->wait(std::chrono::milliseconds(50));
  const auto start = std::chrono::steady_clock::now();
  own->wait(std::chrono::milliseconds(50));
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(40));
}

INSTANTIATE_TEST_SUITE_P(Reports, IcmpErrorTest,
                         testing::Values(std::array<std::uint8_t, 2>{3, 0},     // network unreachable
                                         std::array<std::uint8_t, 2>{3, 1},     // host unreachable
                                         std::array<std::uint8_t, 2>{3, 2},     // protocol unreachable
                                         std::array<std::uint8_t, 2>{3, 3},     // port unreachable
                                         std::array<std::uint8_t, 2>{3, 4},     // needs fragments: 1280 bytes
                                         std::array<std::uint8_t, 2>{3, 13},    // prohibited
                                         std::array<std::uint8_t, 2>{11, 0},    // time exceeded
                                         std::array<std::uint8_t, 2>{12, 0}));  // parameter problem

TEST(RecentPeersTest, TwoPeersShareAPlace) {
  const Endpoint first{kLoopback, 1};
  Endpoint second{kLoopback, 2};
  while (hash_of(first) % 1024 != hash_of(second) % 1024) ++second.port;
  const RecentPeers::TimePoint now{std::chrono::hours(1)};
  RecentPeers peers;
  for (const Endpoint peer : {first, second, first}) peers.note(peer, now);
  EXPECT_TRUE(peers.heard_since(first, now) && peers.heard_since(second, now));
}

}  // namespace
}  // namespace thc::io::test
