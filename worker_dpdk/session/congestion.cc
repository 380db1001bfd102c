#include "session/congestion.h"

namespace thc {
namespace {

using Microseconds = std::chrono::duration<double, std::micro>;

// RFC 6928's ten packets, within their bytes on Ethernet; fewer if many workers start at once.
constexpr std::size_t kFirstPackets = 10;
constexpr std::size_t kFirstPacketsOfAll = 256;
constexpr std::size_t kFirstBytes = 14'600;
constexpr std::size_t kFewestPackets = 2;
constexpr std::size_t kManyWorkers = 32;  // one packet per worker fills a short queue
// Pacing at twice the delivery rate lets it double. Bursts are at most a millisecond's delivery and 64 KiB, but above
// some 10 Gb/s a timer period's.
constexpr double kPace = 2;
constexpr double kBurstUs = 1'000;
constexpr std::size_t kBurstBytes = 64 * 1024;
constexpr double kTimerUs = 250;
// As in BBR, the pipe is full after three rounds without a quarter more delivery.
constexpr double kGrowth = 1.25;
constexpr unsigned kFlatRounds = 3;
constexpr unsigned kQueueingRounds = 2;
// The window then grows by these parts a round: without a queue, and with one.
constexpr double kFastGrowth = 1.0 / 8;
constexpr double kSlowGrowth = 1.0 / 32;
// Growth stops at a queue that is longer than the path and takes longer than this many bytes at the delivery rate,
// within these times: threads that share cores are milliseconds late. At the next step, the content of a server's
// receive memory would enter a short queue at once.
constexpr double kMayQueueBytes = 128 * 1024;
constexpr Microseconds kMayQueueAtLeast{5'000};
constexpr Microseconds kMayQueueAtMost{25'000};
constexpr Duration kShortestQueue{200};
// A worker that is never last knows nothing of the network. The last known state is valid for this many rounds.
constexpr unsigned kRememberedRounds = 8;
// Others then set the pace, and the results of four windows that double at once meet in the server's queue. With fewer
// packets, the last worker is chance.
constexpr std::size_t kFewPackets = 20;
// Bytes per microsecond. Above the first rate, threads that share cores are late by more than a queue, so the last
// worker is chance. Above the second, pacing costs more than it saves.
constexpr double kFastRate = 8;
constexpr double kUnpacedRate = 40;
// Loss with a queue, and loss beyond a path's own.
constexpr double kShrinkForLoss = 0.65;
constexpr double kShrinkForMuchLoss = 0.7;
constexpr double kMuchLoss = 0.1;
constexpr std::uint32_t kFewestLosses = 8;
constexpr double kNeeded = 1.25;
constexpr std::size_t kCountedPackets = 100;
// If a fast link loses less than this share of its last packets, its queues take a window at once.
constexpr double kHardlyLost = 0.002;
// A short queue or a policer loses more than random loss does, so bursts become as short as possible.
constexpr double kBurstsLost = 0.05;
constexpr std::size_t kRecentPackets = 8'192;
// The least round trip is probed after this time, or this many round trips, without one like it: the route may have
// changed, or others may fill a queue, which then is part of the path. The pipe drains in the first round.
constexpr Duration kProbePeriod{500'000};
constexpr int kProbePeriodRoundTrips = 32;
constexpr std::size_t kProbePackets = 4;
constexpr double kProbeShare = 0.5;
constexpr unsigned kProbeRounds = 2;
constexpr double kNeededAnew = 1.5;

}  // namespace

void CongestionControl::open(std::size_t packet_bytes, std::size_t most_bytes, Way way) noexcept {
  packet_bytes_ = packet_bytes;
  most_bytes_ = std::max(most_bytes, kFewestPackets * packet_bytes);
  way_ = way;
  const std::size_t first_packets = std::clamp<std::size_t>(kFirstPacketsOfAll / way.workers, 1, kFirstPackets);
  set_window(static_cast<double>(std::min(first_packets * packet_bytes, kFirstBytes)));
  credit_bytes_ = kBurstBytes;
}

std::size_t CongestionControl::window_bytes() const noexcept {
  if (phase_ != Phase::kProbeRtt) {
    return window_bytes_;
  }
  const auto way = static_cast<std::size_t>(kProbeShare * rate_.get() * static_cast<double>(least_round_trip_.count()));
  return std::min(window_bytes_, std::max(kProbePackets * packet_bytes_, way));
}

void CongestionControl::set_window(double bytes) noexcept {
  if (way_.is_free()) {
    window_bytes_ = most_bytes_;
    return;
  }
  const auto fewest = static_cast<double>((way_.workers < kManyWorkers ? kFewestPackets : 1) * packet_bytes_);
  window_bytes_ = static_cast<std::size_t>(std::clamp(bytes, fewest, static_cast<double>(most_bytes_)));
}

double CongestionControl::burst_bytes() const noexcept {
  const bool loses_bursts = static_cast<double>(recent_.lost_bytes) > kBurstsLost * static_cast<double>(recent_.bytes);
  const std::size_t packets = loses_bursts ? kFewestPackets : kFirstPackets;
  const auto fewest = static_cast<double>(std::min(packets * packet_bytes_, kBurstBytes));
  const double most = std::max(static_cast<double>(kBurstBytes), kPace * rate_.get() * kTimerUs);
  return std::clamp(rate_.get() * kBurstUs, fewest, most);
}

bool CongestionControl::has_room(std::size_t bytes, TimePoint now) noexcept {
  next_send_ = TimePoint::max();
  if (pipe_bytes() != 0 && pipe_bytes() + bytes > window_bytes()) {
    round_.window_used = true;
    return false;
  }
  const double pace = kPace * rate_.get();
  if (pace == 0) {
    return true;
  }
  if (!is_paced()) {  // a later pace owes nothing for these bytes
    credited_at_ = now;
    credit_bytes_ = burst_bytes();
    return true;
  }
  const Microseconds elapsed = now - credited_at_;
  credited_at_ = now;
  const auto wanted = static_cast<double>(bytes);
  credit_bytes_ = std::min(std::max(burst_bytes(), wanted), credit_bytes_ + pace * elapsed.count());
  const double missing = wanted - credit_bytes_;
  if (missing <= 0) {
    return true;
  }
  round_.window_used |= pipe_bytes() >= window_bytes() / 2;
  next_send_ = now + std::chrono::ceil<Duration>(Microseconds(missing / pace));
  return false;
}

std::uint64_t CongestionControl::sent(std::size_t bytes, TimePoint now) noexcept {
  if (pipe_bytes() == 0) {
    begin_round(now);
  }
  credit_bytes_ -= static_cast<double>(bytes);
  sent_bytes_ += bytes;
  return sent_bytes_;
}

void CongestionControl::begin_round(TimePoint now) noexcept { round_ = {.end_mark = sent_bytes_ + 1, .began_at = now}; }

void CongestionControl::answered(std::uint64_t mark, std::size_t bytes, TimePoint now) noexcept {
  timeouts_ = 0;
  round_.delivered_bytes += bytes;
  ++round_.answers;
  counted_.bytes += bytes;
  recent_.bytes += bytes;
  if (recent_.bytes > kRecentPackets * packet_bytes_) {
    recent_.bytes /= 2;
    recent_.lost_bytes /= 2;
  }
  answered_bytes_ = std::max(answered_bytes_, mark);
  if (mark >= round_.end_mark) {
    end_round(now);
  }
}

void CongestionControl::sample_round_trip(Duration round_trip, bool networks_alone) noexcept {
  least_round_trip_ = std::min(least_round_trip_, round_trip);
  round_.least_round_trip = std::min(round_.least_round_trip, round_trip);
  if (networks_alone) {
    round_.least_of_network = std::min(round_.least_of_network, round_trip);
  }
}

bool CongestionControl::is_queue(Duration round_trip) const noexcept {
  return round_trip != Duration::max() &&
         round_trip > least_round_trip_ + std::max(least_round_trip_ / 4, kShortestQueue);
}

Duration CongestionControl::longest_queue() const noexcept {
  const Microseconds taken(kMayQueueBytes / rate_.get());
  return std::chrono::ceil<Duration>(std::clamp(taken, kMayQueueAtLeast, kMayQueueAtMost));
}

bool CongestionControl::finds_queue() noexcept {
  if (round_.least_of_network != Duration::max()) {
    untold_rounds_ = 0;
    return had_queue_ = is_queue(round_.least_of_network);
  }
  // A worker that is never last has more in flight than it needs, so its window may shrink for the wait.
  return way_.server_tells_last && ++untold_rounds_ <= kRememberedRounds ? had_queue_
                                                                         : is_queue(round_.least_round_trip);
}

void CongestionControl::probe_round_trip(TimePoint now) noexcept {
  const Duration least = way_.server_tells_last ? round_.least_of_network : round_.least_round_trip;
  if (phase_ != Phase::kProbeRtt) {
    if (round_.least_round_trip == Duration::max() || way_.is_free()) {
      return;
    }
    if (!is_queue(round_.least_round_trip)) {
      least_seen_at_ = now;
    } else if (elapsed(least_seen_at_, now) > std::max(kProbePeriod, kProbePeriodRoundTrips * least_round_trip_)) {
      phase_after_probe_ = phase_;
      phase_ = Phase::kProbeRtt;
      probe_rounds_ = 0;
      probed_ = Duration::max();
    }
    return;
  }
  if (++probe_rounds_ > 1) {
    probed_ = std::min(probed_, least);
  }
  if (probe_rounds_ < kProbeRounds) {
    return;
  }
  phase_ = phase_after_probe_;
  least_seen_at_ = now;
  if (probed_ == Duration::max()) {
    return;  // the network's share is unknown: the result waited for other workers
  }
  if (probed_ > least_round_trip_) {  // the delivery rate needs a larger window
    phase_ = Phase::kSteady;
    const double needed = kNeededAnew * rate_.get() * static_cast<double>(probed_.count());
    set_window(std::max(static_cast<double>(window_bytes_), needed));
  }
  least_round_trip_ = probed_;
}

void CongestionControl::lost(std::uint64_t mark, std::size_t bytes) noexcept {
  recent_.lost_bytes += bytes;
  if (mark <= shrunk_mark_) {
    return;  // the window has shrunk for this loss
  }
  round_lost_bytes_ += bytes;
  counted_.lost_bytes += bytes;
  ++counted_.count;
}

bool CongestionControl::is_paced() const noexcept {
  const bool hardly_loses = static_cast<double>(recent_.lost_bytes) <= kHardlyLost * static_cast<double>(recent_.bytes);
  return !way_.is_free() && (phase_ == Phase::kStartup || rate_.get() < kUnpacedRate || !hardly_loses);
}

bool CongestionControl::is_much_lost() const noexcept {
  const auto all = static_cast<double>(counted_.bytes + counted_.lost_bytes);
  return counted_.count >= kFewestLosses && static_cast<double>(counted_.lost_bytes) > kMuchLoss * all;
}

void CongestionControl::timed_out() noexcept {
  if (least_round_trip_ != Duration::max() && ++timeouts_ > 1) {  // else the path may be longer than the first timeouts
    shrink(0.5);
  }
}

void CongestionControl::shrink(double factor) noexcept {
  if (phase_ == Phase::kStartup) phase_ = Phase::kSteady;
  // The present delivery rate needs this window even without a queue.
  const double needed =
      kNeeded * rate_.get() * static_cast<double>(least_round_trip_ == Duration::max() ? 0 : least_round_trip_.count());
  const auto window = static_cast<double>(window_bytes_);
  set_window(std::min(window, std::max(window * factor, needed)));
  shrunk_mark_ = sent_bytes_;
  counted_ = {};
}

void CongestionControl::end_round(TimePoint now) noexcept {
  if (round_.delivered_bytes == 0) {
    return begin_round(now);  // notices say nothing about the path
  }
  const Duration taken = std::max(elapsed(round_.began_at, now), Duration(1));
  const double rate = static_cast<double>(round_.delivered_bytes) / static_cast<double>(taken.count());
  rate_.add(rate);
  rate_.count();
  const bool has_sample = round_.least_round_trip != Duration::max();
  const bool queues = finds_queue();
  const bool queues_much =
      queues && round_.least_round_trip > least_round_trip_ + std::max(least_round_trip_, longest_queue());
  const bool waits = is_queue(round_.least_round_trip);
  const bool helps =
      untold_rounds_ == 0 || !way_.awaits_all || rate_.get() > kFastRate || window_bytes_ < kFewPackets * packet_bytes_;
  queueing_rounds_ = queues ? queueing_rounds_ + 1 : 0;
  probe_round_trip(now);
  if (is_much_lost()) {
    shrink(kShrinkForMuchLoss);
  } else if (round_lost_bytes_ > 0 && queues) {
    shrink(kShrinkForLoss);
  } else if (round_.marks > 0 && round_.end_mark > shrunk_mark_ + 1) {  // ignores earlier marks
    shrink(1 - 0.5 * std::min(1.0, static_cast<double>(round_.marks) / static_cast<double>(round_.answers)));
  } else if (phase_ != Phase::kProbeRtt && round_.window_used && has_sample && helps &&
             (round_lost_bytes_ == 0 ? !queues_much : !queues)) {
    grow(rate, waits);
  }
  if (counted_.bytes > kCountedPackets * packet_bytes_) counted_ = {};
  round_lost_bytes_ = 0;
  begin_round(now);
}

void CongestionControl::grow(double rate, bool waits) noexcept {
  const auto window = static_cast<double>(window_bytes_);
  if (phase_ != Phase::kStartup) {
    return set_window(window +
                      std::max(static_cast<double>(packet_bytes_), window * (waits ? kSlowGrowth : kFastGrowth)));
  }
  if (rate >= best_rate_ * kGrowth) {
    best_rate_ = rate;
    flat_rounds_ = 0;
    return set_window(2 * window);
  }
  if (++flat_rounds_ >= kFlatRounds || queueing_rounds_ >= kQueueingRounds) {
    phase_ = Phase::kSteady;
  }
}

}  // namespace thc
