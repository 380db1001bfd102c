#include "session/rtt_estimator.h"

#include <algorithm>

namespace thc {

void RttEstimator::sample(Duration round_trip) noexcept {
  min_ = min_ == Duration::zero() ? round_trip : std::min(min_, round_trip);
  latest_ = round_trip;
  if (smoothed_ == Duration::zero()) {
    smoothed_ = round_trip;
    variation_ = round_trip / 2;
  } else {
    const Duration deviation = round_trip > smoothed_ ? round_trip - smoothed_ : smoothed_ - round_trip;
    variation_ += (deviation - variation_) / 4;
    smoothed_ += (round_trip - smoothed_) / 8;
  }
  doublings_ = 0;
  set_timeout();
}

void RttEstimator::set_timeout() noexcept {
  timeout_ =
      std::clamp(smoothed_ + 4 * variation_, bounds_.min, std::clamp(2 * smoothed_, bounds_.max, bounds_.longest));
}

void RttEstimator::lost() noexcept {
  if (bounds_.min == kOwnHostBounds.min) {
    bounds_ = {};
    timeout_ = bounds_.initial;
    if (smoothed_ != Duration::zero()) set_timeout();
  }
}

bool RttEstimator::back_off(TimePoint now) noexcept {
  if (now < next_doubling_) {
    return false;
  }
  ++doublings_;
  next_doubling_ = now + timeout(0);
  return true;
}

Duration RttEstimator::timeout(unsigned repetitions) const noexcept {
  constexpr unsigned kEnoughDoublings = 20;  // 1 us << 20 exceeds any sane maximum and cannot overflow
  const unsigned doublings = std::min(std::max(repetitions, doublings_), kEnoughDoublings);
  return std::min(timeout_ * (std::int64_t{1} << doublings), std::max(timeout_, bounds_.max));
}

}  // namespace thc
