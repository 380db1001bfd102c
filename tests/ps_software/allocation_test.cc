// The packet path allocates nothing: joined workers, every kind of outcome, with operator new counted.
#include "allocation_counter.h"
#include "shard_fixture.h"

namespace thc::ps {
namespace {

using wire::MessageType;

/// Hands out the same packets again and again; sends into nothing.
class ReplayIo final : public io::PacketIo {
 public:
  std::size_t receive(std::span<io::RxPacket> packets) noexcept override {
    std::size_t count = 0;
    while (count < packets.size() && next_ < packets_.size()) {
      const auto& [from, bytes] = packets_[next_++];
      packets[count++] = {bytes.data(), static_cast<std::uint32_t>(bytes.size()), from};
    }
    return count;
  }
  bool send(io::Endpoint, std::span<const std::uint8_t> header, std::span<const std::uint8_t>,
            std::span<const std::uint8_t>) noexcept override {
    ++sent;
    std::memcpy(&last_header, header.data(), sizeof(last_header));
    if (header.size() == sizeof(last_header) + sizeof(last_cookie)) {  // CHALLENGE
      std::memcpy(&last_cookie, header.data() + sizeof(last_header), sizeof(last_cookie));
    }
    return true;
  }
  void flush() noexcept override {}
  void wait(std::chrono::microseconds) noexcept override {}
  void wake() noexcept override {}
  io::Endpoint local() const noexcept override { return {}; }
  std::size_t max_datagram_bytes(io::Endpoint) const noexcept override { return 9000; }
  std::size_t receive_buffer_bytes() const noexcept override { return 1 << 20; }
  const io::IoCounters& counters() const noexcept override { return counters_; }

  void refill(std::vector<std::pair<io::Endpoint, Bytes>> packets) {
    packets_ = std::move(packets);
    next_ = 0;
  }

  std::size_t sent = 0;
  wire::Header last_header{};
  be64_t last_cookie{};

 private:
  std::vector<std::pair<io::Endpoint, Bytes>> packets_;
  std::size_t next_ = 0;
  io::IoCounters counters_;
};

class Allocation : public ShardTest {};

TEST_F(Allocation, NoneOnThePacketPath) {
  std::vector<std::pair<io::Endpoint, Bytes>> packets;
  ReplayIo replay_io;
  shard.emplace(JobLimits{.share = {}, .max_jobs = 2, .slots = 16, .max_memory_bytes = 1 << 20, .idle_timeout = 30s},
                replay_io);
  for (unsigned worker = 0; worker < kWorkers; ++worker) {
    HelloMessage hello = make_hello(worker);
    replay_io.refill({{address(worker), hello.bytes()}});
    shard->poll(now);
    hello.payload.cookie = replay_io.last_cookie;
    packets.emplace_back(address(worker), hello.bytes());
  }
  HelloMessage forged = make_hello(0);
  forged.values[1] = forged.values[0];
  replay_io.refill({{address(0), forged.bytes()}});
  const std::uint64_t before_hello = testing::allocations();
  shard->poll(now);
  ASSERT_EQ(testing::allocations(), before_hello) << "no table is read before the proof of an address";
  replay_io.refill({packets[0]});
  testing::fail_allocation(1);
  shard->poll(now);
  EXPECT_EQ(replay_io.last_header.message_type, static_cast<std::uint8_t>(MessageType::kError));
  JobEvent told;
  ASSERT_TRUE(shard->job_events().pop(told));
  EXPECT_EQ(told.change, JobChange::kHostFull);
  replay_io.refill(packets);
  shard->poll(now);
  ASSERT_GT(testing::allocations(), before_hello) << "the counting itself works";
  epoch = replay_io.last_header.epoch;

  packets.clear();
  for (std::uint32_t round = 1; round <= 50; ++round) {
    for (unsigned worker = 0; worker < kWorkers; ++worker) {
      packets.emplace_back(address(worker), make_codes(worker, round));             // absorbed, completed
      packets.emplace_back(address(worker), with_header(make_codes(worker, round),  // incomplete, replay
                                                        [](auto& h) { h.flags = wire::kFlagRetransmit; }));
      packets.emplace_back(address(9), make_codes(worker, round));  // wrong sender
      packets.emplace_back(address(worker), with_header(make_codes(worker, round), [](auto& h) {
                             h.epoch = std::uint32_t{1};  // unknown
                           }));
    }
    packets.emplace_back(address(0), make_codes(0, 1));  // replay, straggler
    packets.emplace_back(address(0), Bytes(5));
  }
  replay_io.refill(std::move(packets));
  replay_io.sent = 0;
  const std::uint64_t before = testing::allocations();
  while (shard->poll(now) > 0) {
  }
  shard->run_timers(now);
  EXPECT_EQ(testing::allocations(), before);
  EXPECT_GT(replay_io.sent, 50U * kWorkers);
  EXPECT_EQ(job_counters().completed.get(), 50U);
}

TEST_F(Allocation, NoneOnThePacketPathOfALeaf) {
  constexpr io::Endpoint kRoot{0x0a00ff00, 48865};
  constexpr unsigned kRackWorkers = 2;
  ReplayIo replay_io;
  JobLimits limits{.share = {}, .max_jobs = 2, .slots = 16, .max_memory_bytes = 1 << 20, .idle_timeout = 30s};
  limits.leaf = make_leaf(kRoot, 0, {"0-1", "2"});
  shard.emplace(limits, replay_io);
  const auto answer = [&](MessageType type, const Bytes& payload, const std::function<void(wire::Header&)>& change) {
    wire::Header header = replay_io.last_header;  // to the root
    header.message_type = static_cast<std::uint8_t>(type);
    change(header);
    Bytes bytes(sizeof(header));
    std::memcpy(bytes.data(), &header, sizeof(header));
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    return std::pair(kRoot, bytes);
  };
  const auto deliver = [&](std::vector<std::pair<io::Endpoint, Bytes>> packets) {
    replay_io.refill(std::move(packets));
    while (shard->poll(now) > 0) {
    }
  };
  for (unsigned worker = 0; worker < kRackWorkers; ++worker) {
    HelloMessage hello = make_hello(worker);
    deliver({{address(worker), hello.bytes()}});
    hello.payload.cookie = replay_io.last_cookie;
    deliver({{address(worker), hello.bytes()}});
    if (worker == 0) {
      wire::WelcomePayload shape{};
      shape.slots = std::uint32_t{16};
      shape.norm_slots = std::uint32_t{2};
      shape.window_bytes = std::uint32_t{1} << 20;
      shape.shards = std::uint16_t{1};
      shape.codes_multiple = std::uint16_t{1};
      Bytes payload(sizeof(shape));
      std::memcpy(payload.data(), &shape, sizeof(shape));
      replay_io.refill({answer(MessageType::kWelcome, payload, [](auto& h) { h.epoch = std::uint32_t{99}; })});
      const std::uint64_t before = testing::allocations();
      while (shard->poll(now) > 0) {
      }
      EXPECT_EQ(testing::allocations(), before) << "what WELCOME says is no memory yet: a job is, within its limit";
      deliver({{address(worker), hello.bytes()}});
    }
  }
  ASSERT_EQ(replay_io.last_header.message_type, static_cast<std::uint8_t>(MessageType::kWelcome));
  epoch = replay_io.last_header.epoch;

  std::vector<std::pair<io::Endpoint, Bytes>> packets;
  for (std::uint32_t round = 1; round <= 50; ++round) {
    const auto again = with_header(make_codes(0, round), [](auto& h) { h.flags = wire::kFlagRetransmit; });
    packets.insert(packets.end(), {{address(0), make_codes(0, round)},
                                   {address(0), again},  // incomplete
                                   {address(1), make_codes(1, round)},
                                   {address(0), again}});
    const auto from_root = [&](MessageType type, const Bytes& payload, std::uint8_t contributions) {
      packets.push_back(answer(type, payload, [&](wire::Header& h) {
        h = make_header(type, 0, kCodes);
        h.code_bits = std::uint8_t{8};
        h.num_workers = std::uint8_t{2};
        h.epoch = std::uint32_t{99};
        h.slot = kCodeSlot;
        h.round = round;
        h.contributions = contributions;
      }));
    };
    Bytes incomplete(sizeof(wire::ErrorPayload));
    incomplete[9] = static_cast<std::uint8_t>(wire::ErrorReason::kIncomplete);
    from_root(MessageType::kError, incomplete, 0);
    from_root(MessageType::kAggregate, Bytes(kCodes), 2);
    from_root(MessageType::kAggregate, Bytes(kCodes), 2);  // a copy
  }
  replay_io.refill(std::move(packets));
  const std::uint64_t before = testing::allocations();
  while (shard->poll(now) > 0) {
  }
  shard->run_timers(now);
  EXPECT_EQ(testing::allocations(), before);
  EXPECT_EQ(job_counters().sent_up.get(), 100U);
  EXPECT_EQ(job_counters().passed_on.get(), 50U);
  EXPECT_EQ(job_counters().errors[static_cast<std::size_t>(wire::ErrorReason::kRacksIncomplete)].get(), 50U);
}

}  // namespace
}  // namespace thc::ps
