// Time of the server per packet, sockets left out: checks, slot, look-up and sum, result headers for every worker.
#include <benchmark/benchmark.h>

#include <array>
#include <cstring>
#include <span>
#include <vector>

#include "shard.h"
#include "thc/hello.h"

namespace thc::ps {
namespace {

constexpr std::uint8_t kWorkers = 4;
constexpr std::uint32_t kSlots = 256;

template <typename T>
void append(std::vector<std::uint8_t>& bytes, const T& value) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(&value);
  bytes.insert(bytes.end(), data, data + sizeof(value));
}

io::Endpoint address(unsigned worker) { return {0x0a000001 + worker, 5000}; }

/// Four workers that walk through the slots in step; what the server sends is dropped.
class LoadIo final : public io::PacketIo {
 public:
  explicit LoadIo(std::uint16_t codes) : codes_(codes) {
    for (std::uint8_t worker = 0; worker < kWorkers; ++worker) packets_.push_back(make_hello(worker));
  }

  /// The same HELLOs with the cookies that came back.
  void start_hellos() {
    for (std::size_t i = 0; i < packets_.size(); ++i) {
      std::memcpy(packets_[i].data() + sizeof(wire::Header) + offsetof(wire::HelloPayload, cookie), &cookies_[i],
                  sizeof(be64_t));
    }
    next_ = 0;
  }

  /// From HELLO to CODES, with the epoch of the last WELCOME.
  void start_codes() {
    packets_.clear();
    for (std::uint32_t slot = kSlots / 8; slot < kSlots; ++slot) {
      for (std::uint8_t worker = 0; worker < kWorkers; ++worker) packets_.push_back(make_codes(worker, slot));
    }
    next_ = 0;
  }

  std::size_t receive(std::span<io::RxPacket> packets) noexcept override {
    if (next_ == packets_.size()) {
      next_ = 0;
      round_ = round_ + 1;
    }
    std::size_t count = 0;
    for (; count < packets.size() && next_ < packets_.size(); ++count, ++next_) {
      std::vector<std::uint8_t>& bytes = packets_[next_];
      if (bytes[1] == static_cast<std::uint8_t>(wire::MessageType::kCodes)) {
        std::memcpy(bytes.data() + offsetof(wire::Header, round), &round_, sizeof(round_));
      }
      packets[count] = {bytes.data(), static_cast<std::uint32_t>(bytes.size()), address(next_ % kWorkers)};
    }
    return count;
  }
  bool send(io::Endpoint, std::span<const std::uint8_t> header, std::span<const std::uint8_t>,
            std::span<const std::uint8_t>) noexcept override {
    std::memcpy(&last_header_, header.data(), sizeof(last_header_));
    if (last_header_.message_type == static_cast<std::uint8_t>(wire::MessageType::kChallenge)) {
      std::memcpy(&cookies_[last_header_.worker_id], header.data() + sizeof(last_header_), sizeof(be64_t));
    }
    ++sent;
    return true;
  }
  void flush() noexcept override {}
  void wait(std::chrono::microseconds) noexcept override {}
  void wake() noexcept override {}
  io::Endpoint local() const noexcept override { return {}; }
  std::size_t max_datagram_bytes(io::Endpoint) const noexcept override { return 65507; }
  std::size_t receive_buffer_bytes() const noexcept override { return 1 << 20; }
  const io::IoCounters& counters() const noexcept override { return counters_; }

  std::size_t sent = 0;

 private:
  wire::Header make_header(wire::MessageType type, std::uint8_t worker) const {
    wire::Header header{};
    header.version = wire::kVersion;
    header.message_type = static_cast<std::uint8_t>(type);
    header.code_bits = std::uint8_t{4};
    header.value_bits = std::uint8_t{8};
    header.worker_id = worker;
    header.num_workers = kWorkers;
    return header;
  }

  std::vector<std::uint8_t> make_hello(std::uint8_t worker) const {
    std::array<std::uint16_t, 16> values;
    for (std::uint16_t i = 0; i < 16; ++i) values[i] = static_cast<std::uint16_t>(2 * i);
    const auto payload = hello_payload({.job_id = 0,
                                        .worker_id = worker,
                                        .nonce = worker + 1U,
                                        .cookie = 0,
                                        .config = {.num_workers = kWorkers,
                                                   .value_bits = 8,
                                                   .quorum = kWorkers,
                                                   .settings_hash = 0,
                                                   .codes_per_packet = codes_,
                                                   .slots_asked = kSlots,
                                                   .table = LookupTable(4, values)}});
    std::vector<std::uint8_t> bytes;
    append(bytes, make_header(wire::MessageType::kHello, worker));
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    return bytes;
  }

  std::vector<std::uint8_t> make_codes(std::uint8_t worker, std::uint32_t slot) const {
    wire::Header header = make_header(wire::MessageType::kCodes, worker);
    header.payload_count = codes_;
    header.epoch = last_header_.epoch;
    header.slot = slot;
    std::vector<std::uint8_t> bytes;
    append(bytes, header);
    bytes.resize(bytes.size() + codes_ / 2, 0x3a);
    return bytes;
  }

  std::uint16_t codes_;
  be32_t round_ = std::uint32_t{1};
  wire::Header last_header_{};
  std::array<be64_t, kWorkers> cookies_{};
  std::vector<std::vector<std::uint8_t>> packets_;
  std::size_t next_ = 0;
  io::IoCounters counters_;
};

void packet_path(benchmark::State& state) {
  const auto now = std::chrono::steady_clock::now();
  LoadIo load(static_cast<std::uint16_t>(state.range(0)));
  Shard shard({.share = {},
               .max_jobs = 1,
               .slots = kSlots,
               .max_memory_bytes = 1 << 30,
               .idle_timeout = std::chrono::seconds(30)},
              load);
  shard.poll(now);
  load.start_hellos();
  shard.poll(now);
  load.start_codes();
  load.sent = 0;
  std::size_t packets = 0;
  for (auto _ : state) packets += shard.poll(now);
  if (load.sent + 64 < packets) state.SkipWithError("a packet did not lead to a result");
  state.SetItemsProcessed(static_cast<std::int64_t>(packets));
  state.counters["time_per_packet"] =
      benchmark::Counter(static_cast<double>(packets), benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(packet_path)->ArgName("codes")->Arg(1024)->Arg(2048)->Arg(16384);

}  // namespace
}  // namespace thc::ps
