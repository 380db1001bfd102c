// The contract of PacketIo, on every back end.
#include "io/packet_io.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "io/udp_io.h"
#include "test_network.h"

namespace thc::io::test {
namespace {

using std::chrono::steady_clock;

struct BackEnd {
  std::string name;
  std::function<std::string()> missing;
  std::function<IoPair()> make_pair;
};

IoPair udp_pair(bool merged, IpAddress ip = 0x7f000001) {
  UdpConfig config{.local = {ip, 0}};
  config.gso = config.gro = merged;
  auto first = make_udp_io(config);
  return {std::move(first), make_udp_io(config)};
}

std::string not_missing() { return {}; }
std::string dpdk_missing() { return TestNetwork::instance().dpdk_missing(); }
std::string af_packet_missing() {
  const TestNetwork& network = TestNetwork::instance();
  return network.veth_missing().empty() ? network.dpdk_missing() : network.veth_missing();
}

const std::array kBackEnds{
    BackEnd{"udp_gso_gro", not_missing, [] { return udp_pair(true); }},
    BackEnd{"udp_plain", not_missing, [] { return udp_pair(false); }},
    BackEnd{"udp_ipv6", ipv6_missing, [] { return udp_pair(true, kIpv6Loopback); }},
    BackEnd{"memif", dpdk_missing, [] { return TestNetwork::instance().memif_pair(); }},
    BackEnd{"af_packet", af_packet_missing, [] { return TestNetwork::instance().af_packet_pair(); }},
};

// Payload byte j of datagram i, so that a swapped, cut or mixed datagram shows.
std::uint8_t pattern(std::size_t i, std::size_t j) { return static_cast<std::uint8_t>(i * 31 + j * 7 + (j >> 8)); }

class PacketIoTest : public testing::TestWithParam<BackEnd> {
 protected:
  void SetUp() override {
    if (const std::string reason = GetParam().missing(); !reason.empty()) GTEST_SKIP() << reason;
    std::tie(a, b) = GetParam().make_pair();
    connect();
  }

  // Until both know each other's MAC and a virtual link is up; UDP needs one try.
  void connect() {
    const auto deadline = steady_clock::now() + std::chrono::seconds(30);
    const std::array<std::uint8_t, 3> hello{1, 2, 3};
    std::array<RxPacket, 32> packets;
    bool a_heard = false;
    bool b_heard = false;
    while (!(a_heard && b_heard)) {
      ASSERT_LT(steady_clock::now(), deadline) << "the two ends never heard of each other";
      a->send(b->local(), hello, {});
      b->send(a->local(), hello, {});
      a->flush();
      b->flush();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      a_heard |= a->receive(packets) > 0;
      b_heard |= b->receive(packets) > 0;
    }
    ASSERT_NO_FATAL_FAILURE(take_rest(*a, *b));
    ASSERT_NO_FATAL_FAILURE(take_rest(*b, *a));
  }

  // Takes datagrams on their way, which arrive before a last one of another size.
  static void take_rest(PacketIo& from, PacketIo& to) {
    const std::array<std::uint8_t, 4> last{};
    ASSERT_TRUE(from.send(to.local(), last, {}));
    from.flush();
    for (std::size_t size_bytes = 0; size_bytes != last.size();) {
      size_bytes = receive_one(to).size();
      ASSERT_NE(size_bytes, 0U) << "got lost although the two ends know each other";
    }
  }

  // Sends `count` datagrams of `size_bytes` from a to b, at most 64 unseen at a time, and expects them in order.
  void exchange(std::size_t size_bytes, std::size_t count) {
    const std::size_t header_bytes = std::min<std::size_t>(size_bytes, 32);
    std::vector<std::vector<std::uint8_t>> sent(count, std::vector<std::uint8_t>(size_bytes));
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t j = 0; j < size_bytes; ++j) sent[i][j] = pattern(i, j);
    }
    std::array<RxPacket, 48> packets;
    std::size_t next_sent = 0;
    std::size_t next_received = 0;
    const auto deadline = steady_clock::now() + std::chrono::seconds(60);
    while (next_received < count) {
      ASSERT_LT(steady_clock::now(), deadline) << next_received << " of " << count << " arrived";
      for (; next_sent < count && next_sent < next_received + 64; ++next_sent) {
        const std::span<const std::uint8_t> datagram = sent[next_sent];
        ASSERT_TRUE(a->send(b->local(), datagram.first(header_bytes), datagram.subspan(header_bytes)));
      }
      a->flush();
      const std::size_t received = b->receive(packets);
      for (std::size_t k = 0; k < received; ++k, ++next_received) {
        ASSERT_LT(next_received, count) << "more than was sent";
        ASSERT_EQ(packets[k].from, a->local());
        const std::vector<std::uint8_t>& expected = sent[next_received];
        ASSERT_TRUE(std::ranges::equal(std::span(packets[k].data, packets[k].size_bytes), expected))
            << "datagram " << next_received << " of " << size_bytes << " bytes came as " << packets[k].size_bytes;
      }
      if (received == 0) b->wait(std::chrono::milliseconds(10));
    }
  }

  std::unique_ptr<PacketIo> a;
  std::unique_ptr<PacketIo> b;
};

TEST_P(PacketIoTest, DeliversEverySizeAndCountInOrder) {
  const std::size_t mtu_bytes = std::min<std::size_t>(a->max_datagram_bytes(b->local()), 9000 - 28);
  for (const std::size_t size_bytes :
       {std::size_t{1}, std::size_t{33}, std::size_t{512 + 32}, std::size_t{1024 + 32}, std::size_t{1471}, mtu_bytes}) {
    for (const std::size_t count : {1, 33, 1000}) {
      SCOPED_TRACE(std::to_string(count) + " x " + std::to_string(size_bytes) + " bytes");
      ASSERT_NO_FATAL_FAILURE(exchange(size_bytes, count));
    }
  }
  EXPECT_EQ(b->counters().rx_malformed, 0U);
  EXPECT_EQ(a->counters().tx_no_buffer + a->counters().tx_errors, 0U);
}

TEST_P(PacketIoTest, CountsDatagramsAndTheirBytes) {
  const IoCounters sent_before = a->counters();
  const IoCounters received_before = b->counters();
  ASSERT_NO_FATAL_FAILURE(exchange(544, 100));
  EXPECT_EQ(a->counters().tx_packets - sent_before.tx_packets, 100U);
  EXPECT_EQ(a->counters().tx_bytes - sent_before.tx_bytes, 54400U);
  EXPECT_EQ(b->counters().rx_packets - received_before.rx_packets, 100U);
  EXPECT_EQ(b->counters().rx_bytes - received_before.rx_bytes, 54400U);
}

TEST_P(PacketIoTest, MixedSizesKeepTheirBorders) {
  std::vector<std::string> sent;
  for (std::size_t i = 0; i < 60; ++i) sent.emplace_back(1 + (i * 397) % 1400, static_cast<char>('a' + i % 26));
  for (const std::string& text : sent) {
    ASSERT_TRUE(a->send(b->local(), {}, {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}));
  }
  a->flush();
  for (const std::string& text : sent) ASSERT_EQ(receive_one(*b), text);
}

TEST_P(PacketIoTest, RefusesDatagramsThatCannotBeSent) {
  const std::vector<std::uint8_t> too_long(65508);
  EXPECT_FALSE(a->send(b->local(), {}, too_long));
  EXPECT_FALSE(a->send(b->local(), std::span(too_long).first(PacketIo::kMaxHeaderBytes + 1), {}));
  EXPECT_FALSE(a->send(b->local(), {}, {}));
  EXPECT_EQ(a->counters().tx_errors, 3U);
}

TEST_P(PacketIoTest, WaitEndsInTime) {
  const auto start = steady_clock::now();
  a->wait(std::chrono::milliseconds(20));
  EXPECT_LT(steady_clock::now() - start, std::chrono::seconds(10));  // and not never
}

// A full ring of a device waits for the other end; kernel UDP drops at the receiver, which has no ring.
TEST_P(PacketIoTest, ASlowPeerLosesNothing) {
  if (GetParam().name != "memif") GTEST_SKIP() << "the sender does not see how full the receiver is";
  constexpr std::size_t kSent = 3000;  // several rings full
  std::size_t received = 0;
  std::thread reader([&] {
    while (received < kSent) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // longer than a few polls of the sender
      const std::size_t count = receive_each(*b, std::min<std::size_t>(kSent - received, 256), [](const RxPacket&) {});
      if (count == 0) return;
      received += count;
    }
  });
  const std::array<std::uint8_t, 1000> data{};
  const std::uint64_t sent_before = a->counters().tx_packets;
  for (std::size_t i = 0; i < kSent; ++i) a->send(b->local(), {}, data);
  a->flush();
  EXPECT_EQ(a->counters().tx_no_buffer, 0U);
  EXPECT_EQ(a->counters().tx_packets - sent_before, kSent);
  reader.join();
  EXPECT_EQ(received, kSent);
}

INSTANTIATE_TEST_SUITE_P(BackEnds, PacketIoTest, testing::ValuesIn(kBackEnds),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace thc::io::test
