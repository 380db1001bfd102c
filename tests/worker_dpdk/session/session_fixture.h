// A server and sockets for sessions, over kernel UDP.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "io/faulty_io.h"
#include "io/udp_io.h"
#include "session/session.h"
#include "shard.h"

namespace thc::testing {

inline constexpr io::Endpoint kLoopback{0x7f000001, 0};
inline constexpr Duration kLongEnough{30'000'000};

/// The packet threads of thc-ps, in one thread.
class Server {
 public:
  using Ios = std::vector<std::unique_ptr<io::PacketIo>>;

  explicit Server(std::uint16_t shards = 1, std::uint16_t codes_multiple = 1)
      : ios_(io::make_udp_ios({.local = kLoopback}, shards)),
        shards_(make_shards(ios_, codes_multiple)),
        thread_([this] { run(); }) {}
  ~Server() {
    stop_ = true;
    ios_.front()->wake();
    thread_.join();
  }
  io::Endpoint address() const { return ios_.front()->local(); }
  /// Packets that came to another shard than the one their slot names.
  std::uint64_t misdirected() const {
    constexpr auto kSlot = static_cast<std::size_t>(ps::Drop::kSlot);
    std::uint64_t sum = 0;
    for (const auto& shard : shards_) {
      sum += shard->strays().drops[kSlot].get();
      for (const ps::JobCounters& job : shard->jobs()) sum += job.packets.drops[kSlot].get();
    }
    return sum;
  }

 private:
  using Shards = std::vector<std::unique_ptr<ps::Shard>>;

  static Shards make_shards(const Ios& ios, std::uint16_t codes_multiple) {
    const auto count = static_cast<std::uint16_t>(ios.size());
    Shards shards;
    for (std::uint16_t i = 0; i < count; ++i) {
      const ps::JobLimits limits{.share = {.shard = i, .shards = count}, .codes_multiple = codes_multiple};
      shards.push_back(std::make_unique<ps::Shard>(limits, *ios[i]));
    }
    return shards;
  }
  void run() {
    while (!stop_) {
      std::size_t received = 0;
      for (const auto& shard : shards_) received += shard->poll(Clock::now());
      if (received == 0) {
        ios_.front()->wait(Duration(ios_.size() == 1 ? 10'000 : 500));  // the others are not watched
      }
    }
  }

  const Ios ios_;
  const Shards shards_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

inline SessionConfig config_of(const Server& server, std::uint8_t worker, std::uint8_t workers) {
  std::vector<std::uint16_t> values(16);
  std::iota(values.begin(), values.end(), std::uint16_t{0});
  SessionConfig config{.table = LookupTable(4, values)};
  config.servers = {server.address()};
  config.job_id = 1;
  config.worker_id = worker;
  config.num_workers = workers;
  config.codes_per_packet = 1024;
  config.connect_timeout = kLongEnough;
  return config;
}

inline std::unique_ptr<io::PacketIo> udp(double fault_rate = 0) {
  const io::FaultConfig faults{.drop = fault_rate, .duplicate = fault_rate, .reorder = fault_rate};
  return std::make_unique<io::FaultyIo>(io::make_udp_io({.local = kLoopback}), faults);
}

/// All workers push partitions of the code `worker + 1` everywhere and check the sums.
inline void push_and_check(const Server& server, std::uint8_t workers, double fault_rate) {
  std::vector<std::thread> threads;
  for (std::uint8_t worker = 0; worker < workers; ++worker) {
    threads.emplace_back([&, worker] {
      Session session(config_of(server, worker, workers), udp(fault_rate));
      ASSERT_TRUE(session.wait_connected(kLongEnough));
      constexpr std::size_t kCount = 100'000;
      const std::vector<std::uint8_t> codes(kCount / 2, static_cast<std::uint8_t>((worker + 1) * 0x11));
      std::vector<std::vector<std::uint8_t>> sums(4, std::vector<std::uint8_t>(kCount));
      std::vector<std::vector<std::uint8_t>> contributions(4, std::vector<std::uint8_t>(session.chunks(kCount)));
      const std::vector<float> norms(100, static_cast<float>(worker));
      std::vector<float> max_norms(100);
      std::vector<Session::OperationPtr> handles = {session.push_norms(0, norms, max_norms)};
      for (std::uint16_t p = 0; p < 4; ++p) {
        handles.push_back(session.push_codes(p, codes.data(), kCount, sums[p].data(), contributions[p].data()));
      }
      for (const Session::OperationPtr& handle : handles) ASSERT_TRUE(session.wait(handle, kLongEnough));
      const auto sum = static_cast<std::uint8_t>(workers * (workers + 1) / 2);
      for (const auto& own : sums) EXPECT_EQ(own, std::vector<std::uint8_t>(kCount, sum));
      EXPECT_EQ(max_norms, std::vector<float>(100, static_cast<float>(workers - 1)));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace thc::testing
