#pragma once

#include "session/session_config.h"

namespace thc {

struct RttBounds {
  Duration initial{20'000};
  Duration min{500};
  Duration max{200'000};        ///< limit of back-off: a returning server is heard soon
  Duration longest{2'000'000};  ///< limit if round trips exceed max, on a long path or to a slow switch
};

/// To a server on this host: the path loses nothing, but the server may lack a CPU for long.
inline constexpr RttBounds kOwnHostBounds{.initial = Duration{50'000}, .min = Duration{50'000}};

/// As in TCP (RFC 6298). Round trips contain the wait for other workers, so the estimate follows the slowest.
class RttEstimator {
 public:
  explicit RttEstimator(const RttBounds& bounds = {}) noexcept : bounds_(bounds), timeout_(bounds.initial) {}

  /// Only for packets sent once: the result of a repeated one may answer either copy (Karn's algorithm). Ends back-off.
  void sample(Duration round_trip) noexcept;

  /// At most once per timeout. Otherwise longer round trips would have every packet repeated, and never be measured.
  bool back_off(TimePoint now) noexcept;

  /// For a repeated packet: ends back-off if this is a plausible round trip (Karn's algorithm).
  void confirm(Duration round_trip) noexcept {
    if (round_trip >= min_ && round_trip <= timeout_) {
      doublings_ = 0;
    }
  }
  /// Ends the patience with servers on this host: missing results are lost.
  void lost() noexcept;
  bool backed_off() const noexcept { return doublings_ != 0; }

  Duration timeout(unsigned repetitions) const noexcept;

  const RttBounds& bounds() const noexcept { return bounds_; }
  /// Zero before the first sample.
  Duration smoothed() const noexcept { return smoothed_; }
  Duration latest() const noexcept { return latest_; }
  /// Zero before the first sample.
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
