// A network in memory: worker engines on one side, an aggregator around the real SlotPool on the other, packets lost,
// doubled and swapped on the way by a seeded generator. Nothing happens behind the test's back: it calls deliver().
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "io/packet_io.h"
#include "thc/slot_pool.h"
#include "thc/wire_layout.h"

namespace thc::testing {

using Datagram = std::vector<std::uint8_t>;

inline constexpr io::Endpoint kServer{0x0a000001, 48865};

constexpr io::Endpoint shard_address(std::uint32_t shard) {
  return {kServer.ip, static_cast<std::uint16_t>(kServer.port + shard)};
}

inline wire::Header header_of(const Datagram& datagram) {
  wire::Header header;
  std::memcpy(&header, datagram.data(), sizeof(header));
  return header;
}

/// A datagram that is a header alone.
inline Datagram make_datagram(const wire::Header& header) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(&header);
  return {bytes, bytes + sizeof(header)};
}

template <typename Payload>
Datagram make_datagram(const wire::Header& header, const Payload& payload) {
  Datagram datagram(sizeof(header) + sizeof(payload));
  std::memcpy(datagram.data(), &header, sizeof(header));
  std::memcpy(datagram.data() + sizeof(header), &payload, sizeof(payload));
  return datagram;
}

/// A worker's packets: sent ones wait in `sent`, the test puts arriving ones into `arriving`.
class MemoryIo final : public io::PacketIo {
 public:
  struct Arriving {
    io::Endpoint from;
    Datagram datagram;
  };

  std::size_t receive(std::span<io::RxPacket> packets) noexcept override {
    received_.clear();
    while (received_.size() < packets.size() && !arriving.empty()) {
      received_.push_back(std::move(arriving.front()));
      arriving.pop_front();
    }
    for (std::size_t i = 0; i < received_.size(); ++i) {
      packets[i] = {received_[i].datagram.data(), static_cast<std::uint32_t>(received_[i].datagram.size()),
                    received_[i].from};
    }
    return received_.size();
  }
  bool send(io::Endpoint to, std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload,
            std::span<const std::uint8_t> trailer) noexcept override {
    sent_to = to;
    if (refuse_sends > 0) {
      --refuse_sends;
      return false;
    }
    Datagram datagram(header.begin(), header.end());
    datagram.insert(datagram.end(), payload.begin(), payload.end());
    datagram.insert(datagram.end(), trailer.begin(), trailer.end());
    sent.push_back(std::move(datagram));
    return true;
  }
  void flush() noexcept override {}
  void wait(std::chrono::microseconds) noexcept override {}
  void wake() noexcept override {}
  io::Endpoint local() const noexcept override { return {0x0a000002, 1}; }
  bool is_own_host(io::Endpoint) const noexcept override { return own_host; }
  std::size_t max_datagram_bytes(io::Endpoint) const noexcept override { return 65507; }
  std::size_t receive_buffer_bytes() const noexcept override { return 64U << 20; }
  const io::IoCounters& counters() const noexcept override { return counters_; }

  /// Everything sent since the last call.
  std::vector<Datagram> take_sent() { return std::exchange(sent, {}); }

  std::vector<Datagram> sent;
  io::Endpoint sent_to;  ///< of the last one
  std::deque<Arriving> arriving;
  int refuse_sends = 0;
  bool own_host = false;

 private:
  std::vector<Arriving> received_;
  io::IoCounters counters_;
};

/// One job's aggregator. Answers like thc-ps; all shards share one pool, and have epochs epoch() + shard.
class MemoryServer {
 public:
  MemoryServer(const SlotPoolConfig& config, const LookupTable& table, std::uint32_t window_bytes = 1U << 20,
               std::uint16_t shards = 1)
      : pool_(config, table), window_bytes_(window_bytes), shards_(shards) {}

  using Reply = std::function<void(std::uint8_t worker, Datagram)>;

  void handle(const Datagram& datagram, const Reply& reply) {
    wire::Header header = header_of(datagram);
    const auto type = static_cast<wire::MessageType>(std::uint8_t{header.message_type});
    if (type == wire::MessageType::kHello) {
      joined_[{header.worker_id, header.slot}] = true;
      header.epoch = epoch_ + header.slot;
      header.message_type = static_cast<std::uint8_t>(wire::MessageType::kWelcome);
      header.flags = wire::kFlagAbstain | wire::kFlagLast;
      wire::WelcomePayload welcome{};
      welcome.slots = pool_.config().slots;
      welcome.norm_slots = pool_.config().norm_slots;
      welcome.window_bytes = window_bytes_;
      welcome.shards = shards_;
      welcome.codes_multiple = std::uint16_t{1};
      reply(header.worker_id, make_datagram(header, welcome));
    } else if (type == wire::MessageType::kNorm || type == wire::MessageType::kCodes) {
      contribute(header, datagram, reply);
    }
  }

  /// Forgets everything, like a server that was killed and started again.
  void restart() {
    epoch_ += 100;
    joined_.clear();
    pool_.reset();
  }
  std::uint32_t epoch() const { return epoch_; }
  std::uint16_t shards() const { return shards_; }

 private:
  void contribute(wire::Header header, const Datagram& datagram, const Reply& reply) {
    const std::uint32_t shard = header.slot % shards_;
    if (!joined_[{header.worker_id, shard}] || header.epoch != epoch_ + shard) {
      return error(header, wire::ErrorReason::kUnknownJob, 0, reply);
    }
    const SlotReply outcome = pool_.contribute({.slot = header.slot,
                                                .round = header.round,
                                                .worker = header.worker_id,
                                                .retransmit = (header.flags & wire::kFlagRetransmit) != 0,
                                                .abstain = (header.flags & wire::kFlagAbstain) != 0,
                                                .partition = header.partition,
                                                .chunk = header.chunk,
                                                .count = header.payload_count,
                                                .payload = datagram.data() + sizeof(header)});
    switch (outcome.outcome) {
      case SlotOutcome::kCompleted:
        for (unsigned worker = 0; worker < pool_.config().workers; ++worker) {
          result(header, static_cast<std::uint8_t>(worker), outcome, reply);
        }
        return;
      case SlotOutcome::kReplay:
        return result(header, header.worker_id, outcome, reply);
      case SlotOutcome::kIncomplete:
        return error(header, wire::ErrorReason::kIncomplete, outcome.bitmap, reply);
      case SlotOutcome::kOrderMismatch:
        return error(header, wire::ErrorReason::kOrderMismatch, 0, reply);
      case SlotOutcome::kStraggler:
        header.message_type = static_cast<std::uint8_t>(wire::MessageType::kStraggler);
        header.payload_count = 0;
        return reply(header.worker_id, make_datagram(header));
      default:
        return;
    }
  }

  void result(wire::Header header, std::uint8_t worker, const SlotReply& outcome, const Reply& reply) const {
    header.message_type = static_cast<std::uint8_t>(pool_.takes_norms(header.slot) ? wire::MessageType::kMaxNorm
                                                                                   : wire::MessageType::kAggregate);
    const bool last = outcome.outcome == SlotOutcome::kCompleted && worker == header.worker_id;
    header.flags = last ? wire::kFlagLast : std::uint8_t{0};
    header.worker_id = worker;
    header.contributions = outcome.contributions;
    header.payload_count = outcome.count;
    Datagram datagram(sizeof(header));
    std::memcpy(datagram.data(), &header, sizeof(header));
    datagram.insert(datagram.end(), outcome.result.begin(), outcome.result.end());
    reply(worker, std::move(datagram));
  }

  static void error(wire::Header header, wire::ErrorReason reason, std::uint64_t bitmap, const Reply& reply) {
    header.message_type = static_cast<std::uint8_t>(wire::MessageType::kError);
    wire::ErrorPayload payload{};
    payload.reason = static_cast<std::uint16_t>(reason);
    payload.worker_bitmap = bitmap;
    reply(header.worker_id, make_datagram(header, payload));
  }

  SlotPool pool_;
  std::uint32_t window_bytes_;
  std::uint16_t shards_;
  std::uint32_t epoch_ = 1000;
  std::map<std::pair<unsigned, std::uint32_t>, bool> joined_;
};

/// Chance of each fault, per packet and direction.
struct Faults {
  double loss = 0;
  double duplicate = 0;
  double reorder = 0;
};

/// Workers around one MemoryServer.
class MemoryNetwork {
 public:
  MemoryNetwork(std::size_t workers, MemoryServer& server, Faults faults = {}, std::uint64_t seed = 1)
      : server_(server), faults_(faults), random_(seed) {
    for (std::size_t i = 0; i < workers; ++i) ios.push_back(std::make_unique<MemoryIo>());
  }

  /// Carries everything sent to the server and its answers back.
  void deliver() {
    std::vector<Datagram> up;
    for (const auto& packet_io : ios) {
      for (Datagram& datagram : packet_io->take_sent()) up.push_back(std::move(datagram));
    }
    std::vector<std::pair<std::uint8_t, Datagram>> down;
    for (const Datagram& datagram : disturb(up)) {
      server_.handle(datagram,
                     [&](std::uint8_t worker, Datagram answer) { down.emplace_back(worker, std::move(answer)); });
    }
    for (auto& [worker, datagram] : disturb(down)) {
      const std::uint32_t shard = header_of(datagram).slot % server_.shards();
      if (worker < ios.size()) ios[worker]->arriving.push_back({shard_address(shard), std::move(datagram)});
    }
  }

  std::vector<std::unique_ptr<MemoryIo>> ios;

 private:
  bool happens(double chance) { return std::uniform_real_distribution<>()(random_) < chance; }

  template <typename T>
  std::vector<T> disturb(const std::vector<T>& packets) {
    std::vector<T> out;
    for (const T& packet : packets) {
      if (happens(faults_.loss)) continue;
      out.push_back(packet);
      if (happens(faults_.duplicate)) out.push_back(packet);
      if (out.size() >= 2 && happens(faults_.reorder)) std::swap(out.back(), out[out.size() - 2]);
    }
    return out;
  }

  MemoryServer& server_;
  Faults faults_;
  std::mt19937_64 random_;
};

}  // namespace thc::testing
