// The packet path allocates nothing: malloc itself is watched while packets move, through every back end.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "io/udp_io.h"
#include "test_network.h"

namespace {
thread_local bool watching = false;
thread_local std::uint64_t allocations = 0;
void note() noexcept { allocations += watching ? 1 : 0; }
}  // namespace

// Take the place of the C library's functions in this program (operator new calls malloc). glibc offers the originals.
extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier): glibc's names
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
// NOLINTEND(bugprone-reserved-identifier)

void* malloc(std::size_t bytes) {
  note();
  return __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) {
  note();
  return __libc_calloc(count, bytes);
}
void* realloc(void* old, std::size_t bytes) {
  note();
  return __libc_realloc(old, bytes);
}
void* memalign(std::size_t alignment, std::size_t bytes) {
  note();
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) { return memalign(alignment, bytes); }
}

namespace thc::io::test {
namespace {

/// Sends until it arrives: ARP takes a moment, and a virtual link a long one on a busy machine.
void connect(PacketIo& from, PacketIo& to) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  const std::array<std::uint8_t, 3> hello{};
  std::array<RxPacket, 32> packets;
  do {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "nothing ever arrives";
    from.send(to.local(), hello, {});
    from.flush();
    from.receive(packets);
  } while (receive_one(to, nullptr, std::chrono::milliseconds(1)).empty());
}

/// Allocations while `rounds` bursts go from a to b and back. The first few bursts, which set up links, do not count.
std::uint64_t count_allocations(PacketIo& a, PacketIo& b, int rounds) {
  const std::array<std::uint8_t, 32> header{};
  const std::array<std::uint8_t, 1024> payload{};
  std::array<RxPacket, 32> packets;
  std::uint64_t received = 0;
  allocations = 0;
  for (int round = -200; round < rounds; ++round) {
    watching = round >= 0;
    for (PacketIo* from : {&a, &b}) {
      PacketIo& to = from == &a ? b : a;
      for (std::size_t i = 0; i < 40; ++i) {
        from->send(to.local(), header, std::span(payload).first(512 + 256 * (i % 3)));
      }
      from->flush();
      to.wait(std::chrono::microseconds(200));
      for (std::size_t n = to.receive(packets); n > 0; n = to.receive(packets)) received += watching ? n : 0;
    }
    if (!watching) std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
  watching = false;
  EXPECT_GT(received, static_cast<std::uint64_t>(rounds) * 40) << "hardly anything arrived";
  return allocations;
}

std::unique_ptr<UdpIo> loopback() { return make_udp_io({.local = {0x7f000001, 0}}); }

TEST(NoAllocationTest, TheWatchWorks) {
  watching = true;
  allocations = 0;
  delete new volatile int(1);
  std::free(std::malloc(static_cast<std::size_t>(1 + allocations)));
  watching = false;
  EXPECT_EQ(allocations, 2U);
}

TEST(NoAllocationTest, Udp) {
  const auto a = loopback();
  const auto b = loopback();
  EXPECT_EQ(count_allocations(*a, *b, 200), 0U);
}

TEST(NoAllocationTest, UdpFromTheAddressThatWasAsked) {
  const auto own = make_udp_io({.local = {0, 0}, .answers = true});
  const auto peer = loopback();
  const Endpoint asked{0x7f000002, own->local().port};
  const std::array<std::uint8_t, 512> data{};
  std::array<RxPacket, 64> packets;
  std::uint64_t answers = 0;
  allocations = 0;
  for (int round = -20; round < 200; ++round) {
    watching = round >= 0;
    for (std::size_t i = 0; i < 40; ++i) peer->send(asked, {}, data);
    peer->flush();
    for (std::size_t n = own->receive(packets); n > 0; n = own->receive(packets)) {
      for (std::size_t i = 0; i < n; ++i) own->send(own->simplify(packets[i].from), {}, data);
      own->flush();
    }
    for (std::size_t n = peer->receive(packets); n > 0; n = peer->receive(packets)) {
      for (std::size_t i = 0; i < n; ++i) answers += packets[i].from == asked ? 1 : 0;
    }
  }
  watching = false;
  EXPECT_EQ(allocations, 0U);
  EXPECT_GT(answers, 200U * 40U);
}

TEST(NoAllocationTest, Dpdk) {
  if (!TestNetwork::instance().dpdk_missing().empty()) GTEST_SKIP() << TestNetwork::instance().dpdk_missing();
  const IoPair pair = TestNetwork::instance().memif_pair();
  ASSERT_NO_FATAL_FAILURE(connect(*pair.first, *pair.second));
  EXPECT_EQ(count_allocations(*pair.first, *pair.second, 200), 0U);
}

}  // namespace
}  // namespace thc::io::test
