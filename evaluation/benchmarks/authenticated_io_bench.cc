// Cost of a key for thc-ps per packet, without the network: 64 packets of codes are checked, and a sum of twice their
// bytes goes to all workers of a job for as many packets as it has workers.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <vector>

#include "io/authenticated_io.h"
#include "thc/wire_layout.h"

namespace thc::io {
namespace {

constexpr std::size_t kBurst = 64;

/// Receives the same burst again and again, and drops sent packets.
class LoadIo final : public PacketIo {
 public:
  LoadIo(const MessageKeys& keys, std::size_t codes_bytes) {
    for (std::size_t i = 0; i < kBurst; ++i) {
      std::vector<std::uint8_t> bytes(sizeof(wire::Header) + codes_bytes, static_cast<std::uint8_t>(i));
      std::fill_n(bytes.begin() + offsetof(wire::Header, job_id), sizeof(std::uint16_t), std::uint8_t{0});
      const auto digest = digest_payload(keys, std::span(bytes).subspan(sizeof(wire::Header)));
      const Tag tag = make_tag(keys, bytes.data(), digest);
      bytes.insert(bytes.end(), tag.begin(), tag.end());
      datagrams_.push_back(std::move(bytes));
    }
  }
  std::size_t receive(std::span<RxPacket> packets) noexcept override {
    for (std::size_t i = 0; i < kBurst; ++i) {
      packets[i] = {datagrams_[i].data(), static_cast<std::uint32_t>(datagrams_[i].size()), {}};
    }
    return kBurst;
  }
  bool send(Endpoint, std::span<const std::uint8_t>, std::span<const std::uint8_t>,
            std::span<const std::uint8_t> trailer) noexcept override {
    benchmark::DoNotOptimize(trailer.data());
    return true;
  }
  void flush() noexcept override {}
  void wait(std::chrono::microseconds) noexcept override {}
  void wake() noexcept override {}
  Endpoint local() const noexcept override { return {}; }
  std::size_t max_datagram_bytes(Endpoint) const noexcept override { return 65507; }
  std::size_t receive_buffer_bytes() const noexcept override { return 1 << 20; }
  const IoCounters& counters() const noexcept override { return counters_; }

 private:
  std::vector<std::vector<std::uint8_t>> datagrams_;
  IoCounters counters_;
};

void check_and_tag(benchmark::State& state) {
  const auto codes_bytes = static_cast<std::size_t>(state.range(0));
  const auto workers = static_cast<std::size_t>(state.range(1));
  const std::size_t sum_bytes = 2 * codes_bytes;
  const JobKeys keys(JobKey{1});
  AuthenticatedIo packet_io(std::make_unique<LoadIo>(*keys.derive(0, Direction::kUp), codes_bytes), keys,
                            Direction::kDown);
  std::array<RxPacket, kBurst> packets;
  const std::array<std::uint8_t, sizeof(wire::Header)> header{};
  const std::vector<std::uint8_t> sums(kBurst * sum_bytes, 3);
  for (auto _ : state) {
    if (packet_io.receive(packets) != kBurst) return state.SkipWithError("a packet was dropped");
    for (std::size_t i = 0; i < kBurst; ++i) {
      packet_io.send({}, header, std::span(sums).subspan(i / workers * sum_bytes, sum_bytes));
    }
    packet_io.flush();
  }
  state.counters["time_per_packet"] = benchmark::Counter(static_cast<double>(state.iterations() * kBurst),
                                                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

BENCHMARK(check_and_tag)->ArgNames({"codes_bytes", "workers"})->ArgsProduct({{128, 512, 704, 4096}, {1, 8}});

}  // namespace
}  // namespace thc::io
