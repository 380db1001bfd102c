// Retransmission timeout from round-trip times, as TCP does it (RFC 6298).
#pragma once

#include "session/session_config.h"

namespace thc {

/// Of the retransmission timeout.
struct RttBounds {
  Duration initial{20'000};
  Duration min{500};
  Duration max{200'000};        ///< of back-off: a server that was away is heard soon
  Duration longest{2'000'000};  ///< where round trips are longer than that, on a long way or to a slow switch
};

/// To a server on this host: nothing is lost on the way, but the server may have no processor for long.
inline constexpr RttBounds kOwnHostBounds{.initial = Duration{50'000}, .min = Duration{50'000}};

/// Round trips include waiting for the other workers, so the estimate follows the slowest of them.
class RttEstimator {
 public:
  explicit RttEstimator(const RttBounds& bounds = {}) noexcept : bounds_(bounds), timeout_(bounds.initial) {}

  /// Only of packets sent once: the result of a repeated one may answer either copy (Karn's algorithm). Ends back-off.
  void sample(Duration round_trip) noexcept;

  /// A timer ran out: doubles the timeout of all packets, at most once per timeout. Without this, round trips that
  /// have grown past the timeout would have every packet repeated and never be measured. False: not yet again.
  bool back_off(TimePoint now) noexcept;

  /// A packet that was sent more than once has its result, so long after the last time: ends back-off where that can be
  /// a round trip as they were before. Otherwise nothing is known (Karn's algorithm).
  void confirm(Duration round_trip) noexcept {
    if (round_trip >= min_ && round_trip <= timeout_) {
      doublings_ = 0;
    }
  }
  /// A packet was lost, so results that are missing are missing: no patience as with a host's own servers.
  void lost() noexcept;
  bool backed_off() const noexcept { return doublings_ != 0; }

  /// Timeout of a packet repeated `repetitions` times, at most bounds.max or as round trips are.
  Duration timeout(unsigned repetitions) const noexcept;

  const RttBounds& bounds() const noexcept { return bounds_; }
  /// Smoothed round trip; zero before the first sample.
  Duration smoothed() const noexcept { return smoothed_; }
  Duration latest() const noexcept { return latest_; }
  /// The shortest one; zero before the first sample.
  Duration min() const noexcept { return min_; }

 private:
  void set_timeout() noexcept;

  RttBounds bounds_;
  Duration timeout_;
  Duration smoothed_{0};
  Duration latest_{0};
  Duration min_{0};
  Duration variation_{0};
  unsigned doublings_ = 0;
  TimePoint next_doubling_{};
};

}  // namespace thc
