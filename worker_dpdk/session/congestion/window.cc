#include "session/congestion/window.h"

#include <algorithm>

namespace thc::congestion {

void Window::open(std::size_t packet_bytes, std::size_t most_bytes, const Way& way) noexcept {
  path_ = Path(way);
  packet_bytes_ = packet_bytes;
  most_bytes_ = std::max(most_bytes, kParams.steady.fewest_packets * packet_bytes);
  fewest_bytes_ = way.is_free()
                      ? most_bytes_
                      : (way.workers < kParams.steady.many_workers ? kParams.steady.fewest_packets : 1) * packet_bytes;
  const std::size_t packets =
      std::clamp<std::size_t>(kParams.startup.packets_of_all / way.workers, 1, kParams.startup.packets);
  set_window(static_cast<double>(std::min(packets * packet_bytes, kParams.startup.bytes)));
}

std::size_t Window::window_bytes() const noexcept {
  if (!is_probing()) {
    return window_bytes_;
  }
  const auto share = static_cast<std::size_t>(path_.capacity(kParams.probe.share));
  return std::min(window_bytes_, std::max(kParams.probe.packets * packet_bytes_, share));
}

void Window::set_window(double bytes) noexcept {
  window_bytes_ =
      static_cast<std::size_t>(std::clamp(bytes, static_cast<double>(fewest_bytes_), static_cast<double>(most_bytes_)));
}

std::uint64_t Window::add_sent(std::size_t bytes, TimePoint now) noexcept {
  if (pipe_bytes() == 0) {
    begin_round(now);
  }
  return sent_bytes_ += bytes;
}

void Window::on_answered(std::uint64_t mark, std::size_t bytes, TimePoint now) noexcept {
  timeouts_ = 0;
  round_.delivered_bytes += bytes;
  ++round_.answers;
  counted_.answered_bytes += bytes;
  recent_.answered_bytes += bytes;
  if (recent_.answered_bytes > kParams.loss.recent_packets * packet_bytes_) {
    recent_.answered_bytes /= 2;
    recent_.bytes /= 2;
  }
  answered_bytes_ = std::max(answered_bytes_, mark);
  if (mark >= round_.end_mark) {
    end_round(now);
  }
}

void Window::on_round_trip(Duration round_trip, bool networks_alone) noexcept {
  path_.add(round_trip);
  round_.least_round_trip = std::min(round_.least_round_trip, round_trip);
  if (networks_alone) {
    round_.least_of_network = std::min(round_.least_of_network, round_trip);
  }
}

void Window::on_lost(std::uint64_t mark, std::size_t bytes) noexcept {
  recent_.bytes += bytes;
  if (mark <= shrunk_mark_) {
    return;  // the window has shrunk for this loss
  }
  round_loses_ = true;
  counted_.bytes += bytes;
  ++counted_.count;
}

void Window::on_timeout() noexcept {
  if (path_.least_round_trip() != Duration::max() && ++timeouts_ > 1) {  // else the path may be longer than timeouts
    shrink(0.5);
  }
}

void Window::end_round(TimePoint now) noexcept {
  if (round_.delivered_bytes == 0) {
    return begin_round(now);  // notices say nothing about the path
  }
  const Queue queue = path_.end_round(round_, now);
  const bool waits = path_.is_queue(round_.least_round_trip);
  const bool grows = may_grow(queue);
  queueing_rounds_ = queue == Queue::kNone ? 0 : queueing_rounds_ + 1;
  probe(waits, now);
  const auto all_bytes = static_cast<double>(counted_.answered_bytes + counted_.bytes);
  if (counted_.count >= kParams.loss.fewest && static_cast<double>(counted_.bytes) > kParams.loss.much * all_bytes) {
    shrink(kParams.loss.shrink_for_much);
  } else if (round_loses_ && queue != Queue::kNone) {
    shrink(kParams.loss.shrink);
  } else if (round_.marks > 0 && round_.end_mark > shrunk_mark_ + 1) {  // ignores earlier marks
    shrink(1 - 0.5 * std::min(1.0, static_cast<double>(round_.marks) / static_cast<double>(round_.answers)));
  } else if (grows && !is_probing()) {
    grow(round_.rate(now), waits);
  }
  if (counted_.answered_bytes > kParams.loss.counted_packets * packet_bytes_) {
    counted_ = {};
  }
  round_loses_ = false;
  begin_round(now);
}

bool Window::may_grow(Queue queue) const noexcept {
  const bool helps = !path_.is_untold() || !path_.way().awaits_all || path_.rate() > kParams.steady.fast_rate ||
                     window_bytes_ < kParams.steady.few_packets * packet_bytes_;
  return helps && round_.window_used && round_.least_round_trip != Duration::max() &&
         queue <= (round_loses_ ? Queue::kNone : Queue::kShort);
}

void Window::probe(bool waits, TimePoint now) noexcept {
  if (phase_ == Phase::kDrain) {
    phase_ = Phase::kProbeRtt;
  } else if (phase_ == Phase::kProbeRtt) {
    phase_ = phase_after_probe_;
    if (path_.renew(round_, now)) {  // the delivery rate needs a larger window
      phase_ = Phase::kSteady;
      set_window(std::max(static_cast<double>(window_bytes_), path_.capacity(kParams.probe.needed)));
    }
  } else if (waits && !path_.way().is_free() && path_.is_stale(now)) {
    phase_after_probe_ = std::exchange(phase_, Phase::kDrain);
  }
}

void Window::grow(double rate, bool waits) noexcept {
  const auto window = static_cast<double>(window_bytes_);
  if (phase_ == Phase::kSteady) {
    const double part = window * (waits ? kParams.steady.slow_growth : kParams.steady.fast_growth);
    return set_window(window + std::max(static_cast<double>(packet_bytes_), part));
  }
  if (rate >= best_rate_ * kParams.startup.growth) {
    best_rate_ = rate;
    flat_rounds_ = 0;
    return set_window(2 * window);
  }
  if (++flat_rounds_ >= kParams.startup.flat_rounds || queueing_rounds_ >= kParams.startup.queueing_rounds) {
    phase_ = Phase::kSteady;
  }
}

void Window::shrink(double factor) noexcept {
  if (phase_ == Phase::kStartup) phase_ = Phase::kSteady;
  if (phase_after_probe_ == Phase::kStartup) phase_after_probe_ = Phase::kSteady;
  // The present delivery rate needs this window even without a queue.
  const double needed = path_.capacity(kParams.loss.needed);
  const auto window = static_cast<double>(window_bytes_);
  set_window(std::min(window, std::max(window * factor, needed)));
  shrunk_mark_ = sent_bytes_;
  counted_ = {};
}

}  // namespace thc::congestion
