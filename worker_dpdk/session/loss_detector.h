// Which packets of a stage are lost: those that later ones have overtaken. There is a detector for each stage and
// server. docs/contributors/protocol.md, "Loss", has these rules; they follow RFC 9002 (section 6.1) and RACK (RFC
// 8985).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "session/recent_max.h"
#include "session/rtt_estimator.h"
#include "session/slot_stream.h"

namespace thc {

class LossDetector {
 public:
  explicit LossDetector(const RttEstimator& rtt) noexcept : rtt_(rtt) {}

  /// Once, when it is known how many shards there are.
  void open(std::size_t shards) { shards_.resize(shards); }

  /// Call when a packet was sent, for the first time or again.
  void sent(InFlight& packet, TimePoint now) noexcept;
  /// Call when it is told that a packet has arrived and waits for others.
  void noticed(InFlight& packet, TimePoint now) noexcept;
  /// Call when a packet has its result, before the slot is free. `waited`: it may have waited for another worker.
  /// Whether the result is of the first transmission: the last repeat has been answered already, or is too young.
  bool answered(const InFlight& packet, bool waited, TimePoint now) noexcept;
  /// Call when a packet needs no result any more; answered ones, too.
  void released(const InFlight& packet) noexcept { --shard_of(packet).in_flight; }

  /// Whether the time until the result of an unrepeated packet was the network's; otherwise it waited for others.
  bool is_round_trip(const InFlight& packet) const noexcept {
    return packet.first_sent_at > shard_of(packet).noticed_at;
  }

  /// When a packet counts as lost; never unless a later one was answered.
  TimePoint loss_time(const InFlight& packet) const noexcept;
  /// All packets that may be lost have lower numbers.
  std::uint64_t overtaken_below() const noexcept { return overtaken_below_; }

  /// When to ask for a result, because nothing has come; never where nothing is in flight. By number of shard.
  TimePoint probe_time(std::size_t shard) const noexcept;
  void probed(std::size_t shard) noexcept { ++shards_[shard].probes; }
  /// Once for each probe: on a host that never has a processor in time, results are asked for nevertheless.
  void postpone_probes(TimePoint now) noexcept;
  std::size_t shards() const noexcept { return shards_.size(); }
  std::size_t shard_number(const InFlight& packet) const noexcept { return packet.slot % shards_.size(); }

 private:
  struct Shard {
    std::uint64_t transmissions = 0;  ///< packets sent and notices taken
    std::uint64_t answered = 0;       ///< the latest of them that has a result
    std::uint64_t highest_end = 0;    ///< behind the highest packet that has a result
    RecentMax<std::uint64_t, 1024> reordered_by{};
    RecentMax<Duration, 1024> reordered_for{};
    TimePoint active_at{};   ///< last packet sent or answered
    TimePoint noticed_at{};  ///< last notice
    std::uint32_t in_flight = 0;
    unsigned probes = 0;     ///< since the last result
    bool postponed = false;  ///< since the last packet sent, again, too, or answered
  };
  Shard& shard_of(const InFlight& packet) noexcept { return shards_[shard_number(packet)]; }
  const Shard& shard_of(const InFlight& packet) const noexcept { return shards_[shard_number(packet)]; }
  bool answers_first_transmission(const InFlight& packet, TimePoint now) const noexcept;

  const RttEstimator& rtt_;
  std::vector<Shard> shards_;
  std::uint64_t overtaken_below_ = 0;
};

}  // namespace thc
