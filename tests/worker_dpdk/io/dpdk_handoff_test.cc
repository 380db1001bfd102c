// Rings between threads, and buffer caches of threads: small enough for ThreadSanitizer, which does not see into DPDK.
#include "io/dpdk_handoff.h"

#include <gtest/gtest.h>
#include <rte_lcore.h>
#include <rte_mempool.h>

#include <array>
#include <chrono>
#include <thread>
#include <vector>

#include "test_network.h"

namespace thc::io::test {
namespace {

constexpr unsigned kFramesEach = 2000;
constexpr unsigned kGivers = 3;

class DpdkHandoffTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!TestNetwork::instance().dpdk_missing().empty()) GTEST_SKIP() << TestNetwork::instance().dpdk_missing();
    pool_ = rte_pktmbuf_pool_create("handoff_test", 8191, 0, 0, RTE_PKTMBUF_HEADROOM + 64, SOCKET_ID_ANY);
    ASSERT_NE(pool_, nullptr);
  }
  void TearDown() override { rte_mempool_free(pool_); }

  rte_mbuf* new_frame(std::uint32_t number) {
    rte_mbuf* frame = rte_pktmbuf_alloc(pool_);
    frame->pkt_len = number;
    return frame;
  }
  unsigned frames_in_use() const { return rte_mempool_in_use_count(pool_); }

 private:
  rte_mempool* pool_ = nullptr;
};

TEST_F(DpdkHandoffTest, EveryFrameArrivesOnceAndInTheOrderOfItsGiver) {
  DpdkHandoff handoff(2, SOCKET_ID_ANY);
  std::array<std::vector<rte_mbuf*>, kGivers> given;
  for (auto& frames : given) {
    for (unsigned i = 0; i < kFramesEach; ++i) frames.push_back(new_frame(i));
    for (rte_mbuf* frame : frames) frame->port = static_cast<std::uint16_t>(&frames - given.data());
  }
  std::array<unsigned, kGivers> next{};
  std::vector<rte_mbuf*> taken;
  {
    std::vector<std::jthread> givers;
    for (const auto& frames : given) {
      givers.emplace_back([&] {
        for (rte_mbuf* frame : frames) {
          while (!handoff.give(1, frame)) std::this_thread::yield();  // full
        }
      });
    }
    const auto deadline = std::chrono::steady_clock::now() + 6 * kPatience;
    while (taken.size() < kGivers * kFramesEach && std::chrono::steady_clock::now() < deadline) {
      std::array<rte_mbuf*, 64> burst;
      const std::size_t count = handoff.take(1, burst);
      for (std::size_t i = 0; i < count; ++i) {
        EXPECT_EQ(burst[i]->pkt_len, next[burst[i]->port]++);
        taken.push_back(burst[i]);
      }
      if (count == 0) std::this_thread::yield();
    }
  }
  EXPECT_EQ(taken.size(), kGivers * kFramesEach);
  rte_pktmbuf_free_bulk(taken.data(), static_cast<unsigned>(taken.size()));
  EXPECT_EQ(frames_in_use(), 0U);
}

TEST_F(DpdkHandoffTest, AFullRingTakesNoMoreAndTheRestIsFreedWithIt) {
  {
    DpdkHandoff handoff(2, SOCKET_ID_ANY);
    for (unsigned i = 0; i < DpdkHandoff::kFrames; ++i) ASSERT_TRUE(handoff.give(0, new_frame(i)));
    rte_mbuf* one_more = new_frame(0);
    EXPECT_FALSE(handoff.give(0, one_more));
    EXPECT_TRUE(handoff.give(1, one_more)) << "another thread's ring has room";
    EXPECT_EQ(frames_in_use(), DpdkHandoff::kFrames + 1);
  }
  EXPECT_EQ(frames_in_use(), 0U);
}

TEST(DpdkThreadTest, EveryPollingThreadOfALongProcessGetsABufferCache) {
  if (!TestNetwork::instance().dpdk_missing().empty()) GTEST_SKIP() << TestNetwork::instance().dpdk_missing();
  const auto packet_io = make_dpdk_io(TestNetwork::instance().dpdk_config("net_memif0", 97, 1));
  for (int i = 0; i < 2 * RTE_MAX_LCORE; ++i) {
    unsigned lcore = LCORE_ID_ANY;
    std::thread([&] {
      std::array<RxPacket, 1> packets;
      packet_io->receive(packets);
      lcore = rte_lcore_id();
    }).join();
    ASSERT_NE(lcore, static_cast<unsigned>(LCORE_ID_ANY)) << "thread number " << i;
  }
}

}  // namespace
}  // namespace thc::io::test
