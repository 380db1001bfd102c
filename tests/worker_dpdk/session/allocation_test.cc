// The packet path of a worker allocates nothing, all allocations are counted; and a push that finds no memory.
#include <gtest/gtest.h>

#include <array>
#include <new>

#include "allocation_counter.h"
#include "engine_fixture.h"
#include "session/session.h"

namespace thc::testing {
namespace {

/// Answers every CODES packet at once, as the aggregator of a job of one worker, in buffers made beforehand. Every
/// 100th packet is lost, so that timers work as well.
class EchoIo final : public io::PacketIo {
 public:
  explicit EchoIo(const SessionConfig& config) : config_(config) {
    for (Datagram& answer : answers_) answer.resize(sizeof(wire::Header) + config.codes_per_packet);
  }

  std::size_t receive(std::span<io::RxPacket> packets) noexcept override {
    const std::size_t count = std::min(packets.size(), ready_);
    for (std::size_t i = 0; i < count; ++i) packets[i] = {answers_[i].data(), sizes_[i], kServer};
    ready_ = 0;
    return count;
  }
  bool send(io::Endpoint, std::span<const std::uint8_t> bytes, std::span<const std::uint8_t>,
            std::span<const std::uint8_t>) noexcept override {
    if (ready_ == answers_.size()) return false;
    wire::Header header;
    std::memcpy(&header, bytes.data(), sizeof(header));
    if (header.message_type == static_cast<std::uint8_t>(wire::MessageType::kHello)) {
      header.message_type = static_cast<std::uint8_t>(wire::MessageType::kWelcome);
      header.epoch = 1U;
      wire::WelcomePayload welcome{};
      welcome.slots = 40U;
      welcome.norm_slots = 2U;
      welcome.window_bytes = 1U << 20;
      welcome.shards = std::uint16_t{1};
      welcome.codes_multiple = std::uint16_t{1};
      std::memcpy(answers_[ready_].data() + sizeof(header), &welcome, sizeof(welcome));
      sizes_[ready_] = sizeof(header) + sizeof(welcome);
    } else if (++sent_ % 100 == 0) {
      return true;
    } else {
      header.message_type = static_cast<std::uint8_t>(wire::MessageType::kAggregate);
      header.contributions = std::uint8_t{1};
      sizes_[ready_] = static_cast<std::uint32_t>(sizeof(header) + header.payload_count);
    }
    std::memcpy(answers_[ready_].data(), &header, sizeof(header));
    ++ready_;
    return true;
  }
  void flush() noexcept override {}
  void wait(std::chrono::microseconds) noexcept override {}
  void wake() noexcept override {}
  io::Endpoint local() const noexcept override { return {}; }
  std::size_t max_datagram_bytes(io::Endpoint) const noexcept override { return 65507; }
  std::size_t receive_buffer_bytes() const noexcept override { return 64U << 20; }
  const io::IoCounters& counters() const noexcept override { return counters_; }

 private:
  SessionConfig config_;
  std::array<Datagram, 64> answers_;
  std::array<std::uint32_t, 64> sizes_{};
  std::size_t ready_ = 0;
  std::uint64_t sent_ = 0;
  io::IoCounters counters_;
};

TEST(Allocation, NoneOnThePacketPath) {
  const SessionConfig config = resolve(test_config(4, 1), 65507);
  EchoIo packet_io(config);
  TimePoint now{std::chrono::hours(1)};
  SessionState state(config.servers.size());
  SessionEngine engine(config, packet_io, state, 1, now);
  const auto step = [&] {
    engine.step(now);
    now += Duration(50);
  };
  while (!engine.connected()) step();
  // The first operation fills containers that keep their memory.
  Push warm_up(0, 64 * 1000, config, 1);
  Push measured(1, 64 * 10'000, config, 2);
  engine.submit(warm_up.operation, now);
  while (!warm_up.operation->done()) step();
  engine.submit(measured.operation, now);
  const std::uint64_t before = allocations();
  while (!measured.operation->done()) step();
  EXPECT_EQ(allocations() - before, 0U);
  EXPECT_FALSE(measured.operation->failure());
  EXPECT_GT(engine.counters()[Count::kRetransmissions], 50U);
  EXPECT_EQ(engine.counters()[Count::kAggregateReceived], 11'000U);
}

// Its caller frees the buffers, so the polling thread may not have it.
TEST(Allocation, APushWithoutMemoryIsNotTheThreads) {
  constexpr Duration kLongEnough{30'000'000};
  constexpr std::size_t kPackets = 10;
  const SessionConfig config = resolve(test_config(4, 1), 65507);
  const std::vector<std::uint8_t> codes(kPackets * 32);
  std::vector<std::uint8_t> sums(kPackets * 64);
  std::vector<std::uint8_t> contributions(kPackets);
  Session session(config, std::make_unique<EchoIo>(config));
  ASSERT_TRUE(session.wait_connected(kLongEnough));
  Session::OperationPtr operation;
  unsigned failures = 0;
  while (operation == nullptr) {
    fail_allocation(failures + 1);
    try {
      operation = session.push_codes(0, codes.data(), sums.size(), sums.data(), contributions.data());
    } catch (const std::bad_alloc&) {
      ++failures;
    }
    fail_allocation(0);
  }
  EXPECT_GE(failures, 3U) << "the operation and its reference count, and room for it in the thread's list";
  ASSERT_TRUE(session.wait(operation, kLongEnough));
  EXPECT_EQ(session.count(Count::kAggregateReceived), kPackets);
}

}  // namespace
}  // namespace thc::testing
