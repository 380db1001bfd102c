// Follows RFC 9002 (section 6.1) and RACK (RFC 8985); see docs/contributors/protocol.md, "Loss". One per stage and
// server.
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
  void open(std::size_t shards) { shards_.resize(shards); }
  /// Call for every transmission.
  void sent(InFlight& packet, TimePoint now) noexcept;
  /// Call for a notice.
  void noticed(InFlight& packet, TimePoint now) noexcept;
  /// Call before the slot is freed. `waited`: perhaps for another worker. Returns whether the first transmission is
  /// answered.
  bool answered(const InFlight& packet, bool waited, TimePoint now) noexcept;
  /// Call for every packet that no longer needs a result, answered or not.
  void released(const InFlight& packet) noexcept { --shard_of(packet).in_flight; }
  /// Whether the time to the result of an unrepeated packet contains no wait for other workers.
  bool is_round_trip(const InFlight& packet) const noexcept {
    return packet.first_sent_at > shard_of(packet).noticed_at;
  }

  /// TimePoint::max() unless a later packet was answered.
  TimePoint loss_time(const InFlight& packet) const noexcept;
  /// All packets that may be lost have lower numbers.
  std::uint64_t overtaken_below() const noexcept { return overtaken_below_; }
  /// When to ask for a result after silence; TimePoint::max() if nothing is in flight.
  TimePoint probe_time(std::size_t shard) const noexcept;
  void probed(std::size_t shard) noexcept { ++shards_[shard].probes; }
  /// Works once per probe, so that a host without CPU time still probes.
  void postpone_probes(TimePoint now) noexcept;
  /// Time of the last repeats that a server has asked for.
  TimePoint& asked_at(std::size_t shard) noexcept { return shards_[shard].asked_at; }
  std::size_t shards() const noexcept { return shards_.size(); }
  std::size_t shard_number(const InFlight& packet) const noexcept { return packet.slot % shards_.size(); }

 private:
  struct Shard {
    std::uint64_t transmissions = 0;  ///< packets sent and notices received
    std::uint64_t answered = 0;       ///< the latest one with a result
    std::uint64_t highest_end = 0;    ///< end of the highest packet with a result
    RecentMax<std::uint64_t, 1024> reordered_by{};
    RecentMax<Duration, 1024> reordered_for{};
    TimePoint active_at{};   ///< last packet sent or answered
    TimePoint noticed_at{};  ///< last notice
    TimePoint asked_at{};
    std::uint32_t in_flight = 0;
    unsigned probes = 0;     ///< since the last result
    bool postponed = false;  ///< since the last packet sent or answered
  };
  Shard& shard_of(const InFlight& packet) noexcept { return shards_[shard_number(packet)]; }
  const Shard& shard_of(const InFlight& packet) const noexcept { return shards_[shard_number(packet)]; }
  bool answers_first_transmission(const InFlight& packet, TimePoint now) const noexcept;

  const RttEstimator& rtt_;
  std::vector<Shard> shards_;
  std::uint64_t overtaken_below_ = 0;
};

}  // namespace thc
