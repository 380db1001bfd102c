// Threads that poll DPDK devices give back what EAL lends them.
#include <gtest/gtest.h>
#include <rte_lcore.h>

#include <array>
#include <thread>

#include "test_network.h"

namespace thc::io::test {
namespace {

TEST(DpdkThreadTest, EveryPollingThreadOfALongProcessGetsABufferCache) {
  if (!TestNetwork::instance().dpdk_missing().empty()) {
    GTEST_SKIP() << TestNetwork::instance().dpdk_missing();
  }
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
