// Several threads on one DPDK device: whose frames are whose, by the device or by handing them over.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "io/address.h"
#include "io/udp_io.h"
#include "test_network.h"
#include "thc/errors.h"

namespace thc::io::test {
namespace {

using std::chrono::steady_clock;

/// The sender of a datagram, and its number among the sender's.
struct Stamp {
  std::uint32_t sender;
  std::uint32_t number;
};

std::span<const std::uint8_t> bytes_of(const Stamp& stamp) {
  return {reinterpret_cast<const std::uint8_t*>(&stamp), sizeof stamp};
}

std::uint64_t sum(const Ios& ios, std::uint64_t IoCounters::* counter) {
  return std::accumulate(ios.begin(), ios.end(), std::uint64_t{0},
                         [&](std::uint64_t total, const auto& io) { return total + io->counters().*counter; });
}

void poll_all(const Ios& ios) {
  std::array<RxPacket, 64> packets;
  for (const auto& io : ios) io->receive(packets);
}

/// Polls both sides until every thread of `a` can send to `b`: the link is up, and ARP has reached all threads.
void meet(const Ios& a, const Ios& b) {
  const auto deadline = steady_clock::now() + kPatience;
  const Stamp stamp{};
  const auto can_send = [&](const auto& io) { return io->send(b.front()->local(), bytes_of(stamp), {}); };
  while (std::ranges::count_if(a, can_send) != static_cast<std::ptrdiff_t>(a.size())) {
    ASSERT_LT(steady_clock::now(), deadline) << "the two sides never met";
    for (const auto& io : a) io->flush();
    poll_all(b);
    poll_all(a);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (const auto& io : a) io->flush();
  for (int i = 0; i < 20; ++i) {  // datagrams on their way
    poll_all(a);
    poll_all(b);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// A thread for each queue of both sides: every one of `from` sends `count` stamps to every port of `to`, a window at a
/// time, where they must come in order.
void exchange_in_threads(const Ios& from, const Ios& to, std::uint32_t count) {
  constexpr std::uint32_t kWindow = 32;
  const std::size_t flows = from.size() * to.size();
  std::vector<std::atomic<std::uint32_t>> arrived(flows);  // by sender and receiver
  std::atomic<bool> wrong{false};
  const auto deadline = steady_clock::now() + 3 * kPatience;
  const auto all_arrived = [&](std::size_t flow) { return arrived[flow].load() == count; };
  const auto send = [&](std::size_t s) {
    std::vector<std::uint32_t> sent(to.size());
    std::array<RxPacket, 64> packets;
    bool done = false;
    while (!done && !wrong && steady_clock::now() < deadline) {
      done = true;
      for (std::size_t r = 0; r < to.size(); ++r) {
        const std::size_t flow = s * to.size() + r;
        for (; sent[r] < count && sent[r] < arrived[flow].load() + kWindow; ++sent[r]) {
          const Stamp stamp{static_cast<std::uint32_t>(s), sent[r]};
          if (!from[s]->send(to[r]->local(), bytes_of(stamp), {})) wrong = true;
        }
        done = done && all_arrived(flow);
      }
      from[s]->flush();
      if (from[s]->receive(packets) == 0) from[s]->wait(std::chrono::milliseconds(1));
    }
  };
  const auto receive = [&](std::size_t r) {
    std::array<RxPacket, 64> packets;
    bool done = false;
    while (!done && !wrong && steady_clock::now() < deadline) {
      const std::size_t received = to[r]->receive(packets);
      for (std::size_t i = 0; i < received; ++i) {
        Stamp stamp;
        std::memcpy(&stamp, packets[i].data, sizeof stamp);
        std::atomic<std::uint32_t>& next = arrived[stamp.sender * to.size() + r];
        if (packets[i].from != from[stamp.sender]->local() || stamp.number != next.load()) wrong = true;
        ++next;
      }
      done = true;  // a thread of this device polls while its queue may get frames of others
      for (std::size_t flow = 0; flow < flows; ++flow) done = done && all_arrived(flow);
      if (received == 0) to[r]->wait(std::chrono::milliseconds(1));
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < to.size(); ++r) threads.emplace_back([&, r] { receive(r); });
    for (std::size_t s = 0; s < from.size(); ++s) threads.emplace_back([&, s] { send(s); });
  }
  EXPECT_FALSE(wrong) << "a datagram was refused, came to another thread or out of order";
  for (std::size_t flow = 0; flow < flows; ++flow) {
    EXPECT_EQ(arrived[flow], count) << "from " << flow / to.size() << " to " << flow % to.size();
  }
}

class DpdkQueuesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!network.dpdk_missing().empty()) GTEST_SKIP() << network.dpdk_missing();
  }

  void TearDown() override { close_both(); }

  void close_both() {
    b.clear();
    a.clear();
  }

  void open_memif() {
    a = make_dpdk_ios(network.memif_queues(1));
    b = make_dpdk_ios(network.memif_queues(2));
    meet(a, b);
    meet(b, a);
  }

  /// `from[0]` sends `count` datagrams to thread 1 of `to`, over its own queue.
  void send_to_the_other_thread(const Ios& from, const Ios& to, std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) {
      const Stamp stamp{0, i};
      ASSERT_TRUE(from[0]->send(to[1]->local(), bytes_of(stamp), {}));
    }
    from[0]->flush();
  }

  const TestNetwork& network = TestNetwork::instance();
  Ios a;
  Ios b;
};

TEST_F(DpdkQueuesTest, PortsFollowEachOther) {
  a = make_dpdk_ios(network.memif_queues(1));
  ASSERT_EQ(a.size(), 2U);
  EXPECT_EQ(a[1]->local().port, a[0]->local().port + 1);
  a.clear();
  DpdkConfig any = network.memif_queues(1);
  any.local.port = 0;
  a = make_dpdk_ios(any);
  EXPECT_EQ(a[1]->local().port, a[0]->local().port + 1);
  EXPECT_GE(a[0]->local().port, 49152);
}

TEST_F(DpdkQueuesTest, EveryThreadGetsItsDatagramsOverMemif) {
  ASSERT_NO_FATAL_FAILURE(open_memif());
  const std::uint64_t before = sum(b, &IoCounters::rx_handed_over);
  exchange_in_threads(a, b, 5000);
  // A memif's queue q is the peer's queue q: half of each thread's datagrams are for the second thread.
  EXPECT_EQ(sum(b, &IoCounters::rx_handed_over) - before, 2 * 5000U);
  EXPECT_EQ(sum(b, &IoCounters::rx_handoff_full) + sum(b, &IoCounters::rx_malformed), 0U);
}

TEST_F(DpdkQueuesTest, ThreadsThatMatchHandNothingOver) {
  ASSERT_NO_FATAL_FAILURE(open_memif());
  const std::uint64_t before = sum(b, &IoCounters::rx_handed_over);
  for (std::size_t queue = 0; queue < 2; ++queue) {
    const Stamp stamp{};
    ASSERT_TRUE(a[queue]->send(b[queue]->local(), bytes_of(stamp), {}));
    a[queue]->flush();
    EXPECT_EQ(receive_one(*b[queue]).size(), sizeof stamp);
  }
  EXPECT_EQ(sum(b, &IoCounters::rx_handed_over), before);
}

TEST_F(DpdkQueuesTest, OneArpTellsEveryThread) {
  a = make_dpdk_ios(network.memif_queues(1));
  b = make_dpdk_ios(network.memif_queues(2));
  const auto deadline = steady_clock::now() + kPatience;
  const Stamp stamp{};
  while (!b[0]->send(a[0]->local(), bytes_of(stamp), {})) {  // asks until the link is up; a[0] answers
    ASSERT_LT(steady_clock::now(), deadline);
    std::array<RxPacket, 8> packets;
    a[0]->receive(packets);
    b[0]->receive(packets);
  }
  b[0]->flush();
  poll_all(a);
  EXPECT_TRUE(a[1]->send(b[1]->local(), bytes_of(stamp), {})) << "thread 1 has not heard of the ARP to thread 0";
  EXPECT_EQ(a[1]->counters().tx_no_neighbour, 0U);
}

TEST_F(DpdkQueuesTest, AFullRingDropsAndCounts) {
  ASSERT_NO_FATAL_FAILURE(open_memif());
  constexpr std::uint32_t kSent = 600;
  constexpr std::uint32_t kRing = 512;  // DpdkHandoff::kFrames
  EXPECT_EQ(b[0]->receive_buffer_bytes(), kRing * 1500U);
  send_to_the_other_thread(a, b, kSent);
  const IoCounters& first = b[0]->counters();
  const std::uint64_t handed_over = first.rx_handed_over;
  std::array<RxPacket, 64> packets;
  const auto deadline = steady_clock::now() + kPatience;
  while (first.rx_handed_over - handed_over + first.rx_handoff_full < kSent && steady_clock::now() < deadline) {
    EXPECT_EQ(b[0]->receive(packets), 0U);
  }
  EXPECT_EQ(first.rx_handed_over - handed_over, kRing);
  EXPECT_EQ(first.rx_handoff_full, kSent - kRing);
  std::uint32_t next = 0;
  receive_each(*b[1], kRing, [&](const RxPacket& packet) {
    Stamp stamp;
    std::memcpy(&stamp, packet.data, sizeof stamp);
    EXPECT_EQ(stamp.number, next++);
  });
  EXPECT_EQ(next, kRing);
  EXPECT_EQ(b[1]->receive(packets), 0U);
}

TEST_F(DpdkQueuesTest, ThreadsMayEndInAnyOrder) {
  for (const std::size_t first : {0U, 1U}) {
    ASSERT_NO_FATAL_FAILURE(open_memif());
    send_to_the_other_thread(a, b, 100);
    std::array<RxPacket, 64> packets;
    b[0]->receive(packets);  // leaves frames in the ring
    b[first].reset();
    const std::size_t left = 1 - first;
    const Stamp stamp{7, 7};
    ASSERT_TRUE(a[left]->send(b[left]->local(), bytes_of(stamp), {}));
    a[left]->flush();
    bool came = false;
    receive_each(*b[left], left == 1 ? 65 : 1,
                 [&](const RxPacket& packet) { came = came || std::memcmp(packet.data, &stamp, sizeof stamp) == 0; });
    EXPECT_TRUE(came);
    EXPECT_THROW(make_dpdk_ios(network.memif_queues(2)), ConfigurationError) << "a thread still uses the device";
    close_both();
  }
}

TEST_F(DpdkQueuesTest, PeersMayHaveOtherNumbersOfThreadsOverAfPacket) {
  if (!network.veth_missing().empty()) GTEST_SKIP() << network.veth_missing();
  DpdkConfig config = network.af_packet_queues(1);
  config.queues = 2;
  a = make_dpdk_ios(config);
  b = make_dpdk_ios(network.af_packet_queues(2));
  meet(a, b);
  meet(b, a);
  exchange_in_threads(b, a, 3000);  // the kernel spreads by a hash
  exchange_in_threads(a, b, 3000);
  EXPECT_EQ(sum(a, &IoCounters::rx_handoff_full), 0U);
}

TEST_F(DpdkQueuesTest, AnotherNumberOfQueuesSaysWhatToSet) {
  if (!network.veth_missing().empty()) GTEST_SKIP() << network.veth_missing();
  DpdkConfig config = network.af_packet_queues(2);
  config.queues = 2;
  expect_refused<ConfigurationError>(config, "qpairs=2");
  expect_refused<ConfigurationError>(network.af_packet_queues(1), "qpairs=1");  // frames of its second would be lost
  config.queues = 1;
  EXPECT_EQ(make_dpdk_ios(config).size(), 1U) << "the device was not given back";
}

TEST_F(DpdkQueuesTest, PortsThatThereAreNot) {
  DpdkConfig config = network.memif_queues(1);
  config.local.port = 65535;
  expect_refused<ConfigurationError>(config, "65534 or less");
  config.queues = 0;
  expect_refused<ConfigurationError>(config, "at least one");
}

}  // namespace
}  // namespace thc::io::test
