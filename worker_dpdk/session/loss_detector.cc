#include "session/loss_detector.h"

#include <algorithm>
#include <utility>

namespace thc {
namespace {

constexpr std::uint64_t kPacketThreshold = 3;  // RFC 9002, section 6.1.1

}  // namespace

void LossDetector::sent(InFlight& packet, TimePoint now) noexcept {
  Shard& shard = shard_of(packet);
  packet.transmission = ++shard.transmissions;
  packet.awaited_since = now;
  if (packet.first_transmission == 0) {
    packet.first_transmission = packet.transmission;
    ++shard.in_flight;
  }
  shard.active_at = now;
  shard.postponed = false;
}

void LossDetector::noticed(InFlight& packet, TimePoint now) noexcept {
  // The missing worker saw the gap at the same time: allow one more round trip.
  Shard& shard = shard_of(packet);
  packet.transmission = ++shard.transmissions;
  packet.awaited_since = now;
  shard.noticed_at = now;
}

bool LossDetector::answers_first_transmission(const InFlight& packet, TimePoint now) const noexcept {
  return packet.retransmissions == 0 || packet.is_known_to_have_arrived() || elapsed(packet.sent_at, now) < rtt_.min();
}

bool LossDetector::answered(const InFlight& packet, bool waited, TimePoint now) noexcept {
  Shard& shard = shard_of(packet);
  const bool first = answers_first_transmission(packet, now);
  const std::uint64_t transmission = first ? packet.first_transmission : packet.transmission;
  if (first && packet.number < shard.highest_end && shard.answered > transmission) {
    // Late: after 2 round trips, or 1.5 if it waited, another worker may have repeated its packet.
    const Duration response = elapsed(packet.first_sent_at, now);
    if (response < (waited ? rtt_.smoothed() * 3 / 2 : 2 * rtt_.smoothed())) {
      shard.reordered_by.add(shard.answered - transmission);
      shard.reordered_for.add(response - std::min(response, rtt_.smoothed()));
    }
  }
  shard.reordered_by.count();
  shard.reordered_for.count();
  shard.answered = std::max(shard.answered, transmission);
  shard.highest_end = std::max(shard.highest_end, packet.number + 1);
  overtaken_below_ = std::max(overtaken_below_, packet.number);
  shard.active_at = now;
  shard.probes = 0;
  shard.postponed = false;
  return first;
}

TimePoint LossDetector::loss_time(const InFlight& packet) const noexcept {
  const Shard& shard = shard_of(packet);
  if (packet.number >= shard.highest_end || packet.transmission >= shard.answered) {
    return TimePoint::max();
  }
  if (packet.sent_at <= packet.noticed_at && packet.racks == 0) {
    // The packet waits for others, perhaps on a longer path: allow the same time again. A lost result is possible, as
    // is a leaf's lost sum, which the leaf repeats only after this worker does.
    return packet.noticed_at + std::max(elapsed(packet.first_sent_at, packet.noticed_at), rtt_.bounds().min);
  }
  const std::uint64_t reordered_by = shard.reordered_by.get();
  if (shard.answered - packet.transmission >= std::max(kPacketThreshold, reordered_by + reordered_by / 4 + 1)) {
    return packet.awaited_since;
  }
  const Duration round_trip = std::max(rtt_.smoothed(), rtt_.latest());
  const Duration reordered_for = shard.reordered_for.get();
  const Duration delay = round_trip + std::max(round_trip / 8, reordered_for + reordered_for / 4);
  return packet.awaited_since + std::max(delay, rtt_.bounds().min);
}

void LossDetector::postpone_probes(TimePoint now) noexcept {
  for (Shard& shard : shards_) {
    shard.active_at = std::exchange(shard.postponed, true) ? shard.active_at : now;
  }
}

TimePoint LossDetector::probe_time(std::size_t shard) const noexcept {
  const Shard& own = shards_[shard];
  return own.in_flight == 0 ? TimePoint::max() : own.active_at + rtt_.timeout(own.probes);
}

}  // namespace thc
