#pragma once

#include <algorithm>
#include <limits>
#include <utility>

#include "session/congestion/window.h"

namespace thc::congestion {

/// Congestion control of a link (docs/contributors/protocol.md, "Congestion"): a window, and a pacer around it. Packets
/// spend credit, and time adds some.
class Control : public Window {
 public:
  /// A packet waits. Call before can_send() and next_send().
  void on_waiting(std::size_t bytes, TimePoint now) noexcept {
    next_send_ = TimePoint::max();
    if (!fits(bytes)) {
      return on_full();
    }
    const double pace = kParams.pacing.pace * path().rate();
    if (pace == 0 || path().way().is_free()) {
      return;
    }
    const auto wanted = static_cast<double>(bytes);
    const double most = std::max(burst_bytes(), wanted);
    const Microseconds time = now - std::exchange(credited_at_, now);
    // Unpaced packets leave no debt for a later pace.
    credit_bytes_ = is_paced() ? std::min(most, credit_bytes_ + pace * time.count()) : most;
    if (wanted > credit_bytes_) {
      next_send_ = now + std::chrono::ceil<Duration>(Microseconds((wanted - credit_bytes_) / pace));
      if (pipe_bytes() >= window_bytes() / 2) {
        on_full();
      }
    }
  }
  bool can_send(std::size_t bytes) const noexcept { return fits(bytes) && static_cast<double>(bytes) <= credit_bytes_; }
  /// TimePoint::max(): an answer must come first.
  TimePoint next_send() const noexcept { return next_send_; }
  /// Call for every transmission. Returns its mark, the bytes sent up to its end, for on_answered().
  std::uint64_t on_sent(std::size_t bytes, TimePoint now) noexcept {
    credit_bytes_ -= static_cast<double>(bytes);
    return add_sent(bytes, now);
  }

 private:
  bool is_paced() const noexcept {
    return phase() == Phase::kStartup || path().rate() < kParams.pacing.unpaced_rate ||
           recent_losses().exceed(kParams.loss.hardly);
  }
  double burst_bytes() const noexcept {
    const auto& pacing = kParams.pacing;
    const std::size_t packets =
        recent_losses().exceed(kParams.loss.of_bursts) ? kParams.steady.fewest_packets : kParams.startup.packets;
    const auto fewest = static_cast<double>(std::min(packets * packet_bytes(), pacing.burst_bytes));
    const double most =
        std::max(static_cast<double>(pacing.burst_bytes), pacing.pace * path().rate() * pacing.timer_us);
    return std::clamp(path().rate() * pacing.burst_us, fewest, most);
  }

  double credit_bytes_ = std::numeric_limits<double>::infinity();  ///< until the first rate
  TimePoint credited_at_{};
  TimePoint next_send_ = TimePoint::max();
};

}  // namespace thc::congestion
