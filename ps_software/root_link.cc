#include "root_link.h"

#include <utility>

#include "replies.h"
#include "thc/kernel_random.h"

namespace thc::ps {

using wire::ErrorReason;

RootLink::RootLink(const Hello& hello, io::IpAddress holder_ip, const LeafConfig& leaf, ShardShare share)
    : config_(hello.config),
      holder_ip_(holder_ip),
      leaf_(leaf),
      run_(hello.run),
      join_({.job_id = hello.job_id,
             .worker_id = leaf.rack,
             .nonce = random_uint64(),
             .cookie = 0,
             .run = hello.run,
             .config = leaf.towards_root(config_)},
            share.shard, {.first = kHelloInterval, .last = kHelloInterval}, TimePoint{}) {}

void RootLink::start_over(std::uint64_t run) noexcept {
  run_ = run;
  join_.begin_again(random_uint64(), run);
  refusal_.reset();
  silent_since_.reset();
  wanted_until_ = {};  // a worker must ask again: an unused place would keep others waiting
}

bool RootLink::may_give_way(TimePoint now) const noexcept {
  return !is_wanted(now) || (!joined() && refusal_ && refusal_->reason == ErrorReason::kOtherTraining);
}

bool RootLink::take_new_epoch(std::uint32_t epoch) noexcept {
  if (epoch == 0) return false;
  join_.renew(epoch);
  heard_of();
  return true;
}

void RootLink::want(TimePoint now) noexcept {
  if (!is_wanted(now)) heard_of();  // not requested for a long time
  wanted_until_ = now + kPatience;
}

Join::Message RootLink::say_hello(TimePoint now) noexcept {
  if (!silent_since_) silent_since_ = now;
  if (!joined()) return join_.say_hello(now);
  asked_at_ = now;
  return join_.ask();
}

bool RootLink::take_welcome(const wire::Header& header, const wire::WelcomePayload& payload, TimePoint now) noexcept {
  if (payload.slots < 2 || payload.slots > wire::kMaxSlots || payload.norm_slots != norm_slots_of(payload.slots) ||
      payload.codes_multiple != 1 || header.epoch == 0) {
    return false;
  }
  slots_ = payload.slots;
  window_bytes_ = payload.window_bytes;
  join_.take_welcome(header);
  refusal_.reset();
  sent_at_ = now;
  return true;
}

bool RootLink::take_refusal(const Refusal& refusal, TimePoint now) noexcept {
  const bool is_news = !refusal_ || refusal_->reason != refusal.reason || refusal_->field != refusal.field;
  if (is_news || now - refused_at_ >= kRefusalAge) forbearance_.begin(now);
  refusal_ = refusal;
  refused_at_ = now;
  return is_news;
}

std::optional<Refusal> RootLink::why_waiting(TimePoint now) const noexcept {
  const Refusal not_yet{.reason = ErrorReason::kRacksIncomplete, .job_value = leaf_.racks};
  if (refusal_ && now - refused_at_ < kRefusalAge) {
    if (!is_contest(refusal_->reason)) return leaf_.towards_workers(*refusal_);
    if (!forbearance_.is_over(now)) return not_yet;
    // At the root, the refused place is the rack's, not the worker's.
    return refusal_->reason == ErrorReason::kDuplicateWorker ? Refusal{.reason = ErrorReason::kBadConfig} : *refusal_;
  }
  return is_root_silent(now) ? std::optional(not_yet) : std::nullopt;
}

bool RootLink::has_fallen_silent(TimePoint now) noexcept {
  return is_root_silent(now) && !std::exchange(told_of_silence_, true);
}

wire::Header RootLink::partial_sum_header(const wire::Header& contribution, TimePoint now) noexcept {
  const wire::Header& own = join_.header();
  wire::Header header =
      reply_header(contribution, static_cast<wire::MessageType>(std::uint8_t{contribution.message_type}));
  header.flags = own.flags;
  header.code_bits = own.code_bits;
  header.worker_id = own.worker_id;
  header.num_workers = own.num_workers;
  header.epoch = own.epoch;
  sent_at_ = now;
  return header;
}

wire::Header RootLink::repeated_sum_header(const wire::Header& contribution, TimePoint now) noexcept {
  if (!silent_since_) silent_since_ = now;
  wire::Header header = partial_sum_header(contribution, now);
  header.flags = static_cast<std::uint8_t>(header.flags | wire::kFlagRetransmit);
  return header;
}

bool RootLink::is_root_silent(TimePoint now) const noexcept {
  return silent_since_ && now - *silent_since_ >= kSilence;
}

bool RootLink::is_alive_due(TimePoint workers_heard_at, TimePoint now) const noexcept {
  return joined() && workers_heard_at > sent_at_ && now - sent_at_ >= kAliveInterval;
}

bool RootLink::is_addressed(const wire::Header& header) const noexcept {
  const wire::Header& own = join_.header();
  return header.worker_id == own.worker_id && header.num_workers == own.num_workers &&
         header.code_bits == own.code_bits && header.value_bits == own.value_bits && header.job_id == own.job_id;
}

}  // namespace thc::ps
