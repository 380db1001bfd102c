#include "session/rtt_estimator.h"

#include <algorithm>

namespace thc {

void RttEstimator::sample(Duration round_trip) noexcept {
  if (smoothed_ == Duration::zero()) {
    smoothed_ = round_trip;
    variation_ = round_trip / 2;
  } else {
    const Duration deviation = round_trip > smoothed_ ? round_trip - smoothed_ : smoothed_ - round_trip;
    variation_ += (deviation - variation_) / 4;
    smoothed_ += (round_trip - smoothed_) / 8;
  }
  timeout_ = std::clamp(smoothed_ + 4 * variation_, bounds_.min, bounds_.max);
}

Duration RttEstimator::timeout(unsigned doublings) const noexcept {
  constexpr unsigned kEnoughDoublings = 20;  // 1 us << 20 is past any sane maximum and far from overflow
  return std::min(timeout_ * (std::int64_t{1} << std::min(doublings, kEnoughDoublings)), bounds_.max);
}

}  // namespace thc
