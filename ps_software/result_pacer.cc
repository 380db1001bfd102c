#include "result_pacer.h"

#include <algorithm>

namespace thc::ps {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// Results per adaptation of the gap.
constexpr std::uint32_t kResults = 64;
// More repeated requests among them mean that bursts are too long; fewer, that bursts are fine.
constexpr std::uint32_t kMany = 9;
constexpr std::uint32_t kFew = 5;
// The gap triples, up to this share of the time per result: a longer gap could itself make results rare.
constexpr double kLongest = 0.8;
constexpr double kShrink = 0.8;
// A shorter gap is not worth a timer. A longer pause is between steps, and says nothing about the path.
constexpr nanoseconds kShortestGap = microseconds(50);
constexpr nanoseconds kLongestPause = milliseconds(50);
// Results delayed by a late timer catch up.
constexpr nanoseconds kLate = milliseconds(2);

}  // namespace

void ResultPacer::push(const Waiting& waiting) noexcept {
  at(count_) = waiting;
  ++count_;
}

bool ResultPacer::has(const Job& job, std::uint32_t local_slot, std::uint32_t round,
                      std::uint8_t worker) const noexcept {
  for (std::size_t i = 0; i < count_; ++i) {
    const Waiting& waiting = at(i);
    if (waiting.job == &job && waiting.local_slot == local_slot && waiting.header.round == round &&
        waiting.epoch == job.epoch() && (waiting.workers >> worker & 1) != 0) {
      return true;
    }
  }
  return false;
}

void ResultPacer::forget(const Job& job, std::uint32_t local_slot, std::uint32_t round) noexcept {
  for (std::size_t i = 0; i < count_; ++i) {
    Waiting& waiting = at(i);
    if (waiting.job == &job && waiting.local_slot == local_slot && ((waiting.header.round ^ round) & 1) == 0) {
      waiting.workers = 0;
    }
  }
}

ResultPacer::Waiting* ResultPacer::due(TimePoint now) noexcept {
  while (count_ > 0 && at(0).workers == 0) {
    first_ = (first_ + 1) % waiting_.size();
    --count_;
  }
  return count_ > 0 && now >= next_ ? &at(0) : nullptr;
}

void ResultPacer::served(std::uint8_t worker) noexcept { at(0).workers &= ~(std::uint64_t{1} << worker); }

void ResultPacer::sent(TimePoint now) noexcept {
  busy_ += std::clamp<nanoseconds>(now - sent_at_, nanoseconds(0), kLongestPause);
  sent_at_ = now;
  if (++sent_ >= kResults) adapt();
  next_ = std::max(next_, now - kLate) + gap_;
}

void ResultPacer::adapt() noexcept {
  const nanoseconds each = busy_ / kResults;
  const auto share = [&](double part) { return std::chrono::duration_cast<Gap>(part * each); };
  if (asked_again_ > kMany) {
    gap_ = std::min(std::max(3 * gap_, kShortestGap), share(kLongest));
  } else if (asked_again_ <= kFew) {
    gap_ = std::chrono::duration_cast<Gap>(kShrink * gap_);
  }
  if (gap_ < kShortestGap) gap_ = Gap::zero();
  sent_ = asked_again_ = 0;
  busy_ = nanoseconds(0);
}

}  // namespace thc::ps
