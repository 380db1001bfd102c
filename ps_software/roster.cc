#include "roster.h"

#include <algorithm>

namespace thc::ps {

Roster::Verdict Roster::judge(const Hello& hello, TimePoint now) noexcept {
  const Worker& worker = workers_[hello.worker_id];
  if (gone_nonces_[hello.worker_id] == hello.nonce && hello.nonce != 0) return Verdict::kGone;
  if (worker.joined) return worker.nonce == hello.nonce ? Verdict::kAgain : contest(hello.worker_id, now);
  return worker.known ? come_back(hello.worker_id, now) : Verdict::kNew;
}

Roster::Training Roster::judge_training(std::uint64_t run, TimePoint now) noexcept {
  if (size_ == 0 || run == run_) return Training::kSame;
  bool all_silent = true;
  for_each([&](std::uint8_t worker, io::Endpoint) { all_silent = all_silent && is_dead(worker, now); });
  for_each([&](std::uint8_t worker, io::Endpoint) {
    if (all_silent) {
      gone_nonces_[worker] = workers_[worker].nonce;
    } else {
      dispute(worker, now);
    }
  });
  return all_silent ? Training::kOver : Training::kOther;
}

Roster::Verdict Roster::contest(std::uint8_t worker, TimePoint now) noexcept {
  if (is_dead(worker, now)) {
    gone_nonces_[worker] = workers_[worker].nonce;
    return Verdict::kRestarted;
  }
  dispute(worker, now);
  // Perhaps its GOODBYE was lost: the others need their last results before the job starts over.
  if (claims_[worker].unanswered > 1) ask_others(worker, now, now);
  return Verdict::kDuplicate;
}

void Roster::dispute(std::uint8_t worker, TimePoint now) noexcept {
  Claim& claim = claims_[worker];
  if (now >= claim.contested_until) {
    claim.unanswered = 0;
    claim.next_probe = std::max(claim.next_probe, now);  // a series of strangers must not raise the rate of probes
  }
  claim.contested_until = contested_until_ = now + kPatience;
}

bool Roster::is_dead(std::uint8_t worker, TimePoint now) const noexcept {
  const Claim& claim = claims_[worker];
  return now < claim.contested_until && claim.unanswered >= wire::kProbes && now - claim.asked_at >= kSilence &&
         workers_[worker].last_heard <= claim.asked_at;
}

bool Roster::take_due_probe(std::uint8_t worker, TimePoint now) noexcept {
  Claim& claim = claims_[worker];
  if (!workers_[worker].joined || now >= claim.contested_until || now < claim.next_probe) return false;
  if (claim.unanswered == 0 || workers_[worker].last_heard > claim.asked_at) {
    claim.unanswered = 0;
    claim.asked_at = now;
  }
  ++claim.unanswered;
  claim.next_probe = now + kProbeInterval;
  return true;
}

Roster::Verdict Roster::come_back(std::uint8_t worker, TimePoint now) noexcept {
  Claim& claim = claims_[worker];
  if (now >= claim.held_until) claim.held_since = now;
  claim.held_until = now + kPatience;
  const bool is_over = now - claim.held_since >= kLongestHold;
  return !is_over && ask_others(worker, claim.held_since, now) ? Verdict::kHeld : Verdict::kRestarted;
}

bool Roster::ask_others(std::uint8_t worker, TimePoint since, TimePoint now) noexcept {
  bool any = false;
  for_each([&](std::uint8_t other, io::Endpoint) {
    const TimePoint heard = workers_[other].last_heard;
    if (other == worker || now - heard >= kAsking || now - std::max(heard, since) >= kSilence) return;
    dispute(other, now);
    any = true;
  });
  return any;
}

void Roster::enter(const Hello& hello, io::Endpoint from, TimePoint now) noexcept {
  Worker& worker = workers_[hello.worker_id];
  if (size_ == 0) run_ = hello.run;
  size_ += worker.joined ? 0 : 1;
  worker = {.joined = true, .known = true, .endpoint = from, .nonce = hello.nonce, .last_heard = now};
}

void Roster::leave(std::uint8_t worker) noexcept {
  gone_nonces_[worker] = workers_[worker].nonce;
  workers_[worker].joined = false;
  --size_;
}

void Roster::start_over(const Epochs& epochs) noexcept {
  Incarnation& incarnation = superseded_[restarts_++ % superseded_.size()];
  incarnation.epochs = epochs;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    incarnation.endpoints[i] = workers_[i].joined ? workers_[i].endpoint : io::Endpoint{};
  }
  workers_.fill({});
  claims_.fill({});
  size_ = 0;
  contested_until_ = {};
}

const Roster::Incarnation* Roster::superseded(std::uint32_t epoch) const noexcept {
  const auto* found = std::ranges::find_if(superseded_, [epoch](const Incarnation& incarnation) {
    return std::ranges::find(incarnation.epochs, epoch) != incarnation.epochs.end();
  });
  return epoch != 0 && found != superseded_.end() ? found : nullptr;
}

}  // namespace thc::ps
