#pragma once

#include <algorithm>
#include <utility>

#include "session/congestion/params.h"
#include "session/recent_max.h"

namespace thc::congestion {

/// A path as known in advance.
struct Way {
  bool server_tells_last = false;  ///< results name the last worker, for which nobody waited
  bool is_own_host = false;        ///< no interface on the path
  bool awaits_all = true;          ///< no quorum: a result contains all workers' packets
  std::size_t workers = 1;         ///< sharing the path to the server
  /// Only the server's memory queues: all that fits may be in flight, unpaced. A leaf has a further path behind it.
  bool is_free() const noexcept { return server_tells_last && is_own_host; }
};

struct Round {
  std::uint64_t end_mark = 0;  ///< the answer to this mark ends the round
  TimePoint began_at{};
  std::uint64_t delivered_bytes = 0;
  std::uint32_t answers = 0;
  std::uint32_t marks = 0;
  bool window_used = false;
  Duration least_round_trip = Duration::max();
  Duration least_of_network = Duration::max();  ///< without waiting for other workers

  double rate(TimePoint now) const noexcept {
    const Duration taken = std::max(elapsed(began_at, now), Duration(1));
    return static_cast<double>(delivered_bytes) / static_cast<double>(taken.count());
  }
};

enum class Queue : std::uint8_t { kNone, kShort, kLong };

/// Measures the delivery rate and the least round trip, and finds queues.
class Path {
 public:
  explicit Path(const Way& way = {}) noexcept : way_(way) {}
  const Way& way() const noexcept { return way_; }

  void add(Duration round_trip) noexcept { least_round_trip_ = std::min(least_round_trip_, round_trip); }

  Queue end_round(const Round& round, TimePoint now) noexcept {
    rate_.add(round.rate(now));
    rate_.count();
    if (round.least_round_trip != Duration::max() && !is_queue(round.least_round_trip)) {
      least_seen_at_ = now;
    }
    if (!finds_queue(round)) {
      return Queue::kNone;
    }
    const Microseconds taken(kParams.queue.long_bytes / rate());
    const auto least =
        std::chrono::ceil<Duration>(std::clamp(taken, kParams.queue.long_at_least, kParams.queue.long_at_most));
    const bool is_long = round.least_round_trip > least_round_trip_ + std::max(least_round_trip_, least);
    return is_long ? Queue::kLong : Queue::kShort;
  }

  /// Replaces the least round trip by the round's, unless the network's is unknown. Returns whether it is longer.
  bool renew(const Round& round, TimePoint now) noexcept {
    least_seen_at_ = now;
    const Duration probed = way_.server_tells_last ? round.least_of_network : round.least_round_trip;
    return probed != Duration::max() && std::exchange(least_round_trip_, probed) < probed;
  }

  /// The largest one of the last rounds; 0 before the first.
  double rate() const noexcept { return rate_.get(); }
  /// Duration::max() before the first sample.
  Duration least_round_trip() const noexcept { return least_round_trip_; }
  /// Bytes that `factor` times the rate delivers in the least round trip; 0 before the first sample.
  double capacity(double factor) const noexcept {
    const Duration round_trip = least_round_trip_ == Duration::max() ? Duration(0) : least_round_trip_;
    return factor * rate() * static_cast<double>(round_trip.count());
  }
  /// Whether this round trip contains a queue, or a wait for other workers.
  bool is_queue(Duration round_trip) const noexcept {
    return round_trip != Duration::max() &&
           round_trip > least_round_trip_ + std::max(least_round_trip_ / 4, kParams.queue.shortest);
  }
  /// Whether the last round had no round trip of the network alone, from a server that tells them.
  bool is_untold() const noexcept { return untold_rounds_ > 0; }
  /// Whether the least round trip needs a probe.
  bool is_stale(TimePoint now) const noexcept {
    const auto& probe = kParams.probe;
    return elapsed(least_seen_at_, now) > std::max(probe.period, probe.period_round_trips * least_round_trip_);
  }

 private:
  bool finds_queue(const Round& round) noexcept {
    if (round.least_of_network != Duration::max()) {
      untold_rounds_ = 0;
      return had_queue_ = is_queue(round.least_of_network);
    }
    // A worker that is never last has more in flight than it needs, so its window may shrink for the wait.
    return way_.server_tells_last && ++untold_rounds_ <= kParams.queue.remembered_rounds
               ? had_queue_
               : is_queue(round.least_round_trip);
  }

  Way way_;
  RecentMax<double, 8> rate_;
  Duration least_round_trip_ = Duration::max();  ///< since the last probe
  TimePoint least_seen_at_{};                    ///< last round trip without a queue, or last probe
  bool had_queue_ = false;                       ///< at the last known round
  unsigned untold_rounds_ = 0;                   ///< since then
};

}  // namespace thc::congestion
