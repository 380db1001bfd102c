#include "root_link.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "thc/kernel_random.h"

namespace thc::ps {

using wire::ErrorReason;
using wire::MessageType;

RootLink::RootLink(const Hello& hello, std::uint32_t holder_ip, const LeafConfig& leaf, ShardShare share)
    : config_(hello.config), holder_ip_(holder_ip), leaf_(leaf), share_(share), header_{} {
  const JobConfig towards_root = leaf.towards_root(config_);
  hello_payload_ = thc::hello_payload(
      {.job_id = hello.job_id, .worker_id = leaf.rack, .nonce = 0, .cookie = 0, .config = towards_root});
  header_.version = wire::kVersion;
  header_.code_bits = static_cast<std::uint8_t>(LeafConfig::kSumBits);
  header_.value_bits = config_.value_bits;
  header_.worker_id = leaf.rack;
  header_.num_workers = leaf.racks;
  header_.job_id = hello.job_id;
  start_over(hello.run);
}

void RootLink::start_over(std::uint64_t run) noexcept {
  nonce_ = random_uint64();
  run_ = run;
  wire::HelloPayload payload;
  std::memcpy(&payload, hello_payload_.data(), sizeof(payload));
  payload.nonce = nonce_;
  payload.cookie = std::uint64_t{0};
  payload.run = run;
  std::memcpy(hello_payload_.data(), &payload, sizeof(payload));
  header_.epoch = std::uint32_t{0};
  joined_ = false;
  refusal_.reset();
  silent_since_.reset();
  next_hello_ = {};
  wanted_until_ = {};  // by a worker that says HELLO now: a place for none would keep others waiting
}

bool RootLink::may_give_way(TimePoint now) const noexcept {
  return !is_wanted(now) || (!joined_ && refusal_ && refusal_->reason == ErrorReason::kOtherTraining);
}

bool RootLink::take_new_epoch(std::uint32_t epoch) noexcept {
  if (epoch == 0) return false;
  header_.epoch = epoch;
  heard_of();
  return true;
}

void RootLink::want(TimePoint now) noexcept {
  if (!is_wanted(now)) heard_of();  // nobody has asked for it for long
  wanted_until_ = now + kPatience;
}

wire::Header RootLink::notice_header(MessageType type) const noexcept {
  wire::Header header = header_;
  header.message_type = static_cast<std::uint8_t>(type);
  header.slot = share_.shard;
  return header;
}

wire::Header RootLink::hello_header() const noexcept {
  wire::Header header = notice_header(MessageType::kHello);
  // As any worker's: they say the nonce, which the answers repeat.
  header.round = static_cast<std::uint32_t>(nonce_);
  header.partition = static_cast<std::uint16_t>(nonce_ >> 32);
  header.chunk = static_cast<std::uint16_t>(nonce_ >> 48);
  return header;
}

void RootLink::said_hello(TimePoint now) noexcept {
  next_hello_ = now + kHelloInterval;
  challenged_ = false;
  if (!silent_since_) silent_since_ = now;
}

bool RootLink::answers_hello(const wire::Header& header) const noexcept {
  return !joined_ && header.slot == share_.shard && header.round == static_cast<std::uint32_t>(nonce_) &&
         header.partition == static_cast<std::uint16_t>(nonce_ >> 32) &&
         header.chunk == static_cast<std::uint16_t>(nonce_ >> 48);
}

bool RootLink::take_challenge(const wire::ChallengePayload& payload) noexcept {
  std::memcpy(hello_payload_.data() + offsetof(wire::HelloPayload, cookie), &payload.cookie, sizeof(payload.cookie));
  // One answer to a HELLO that was due: a server that took no cookie would otherwise be asked without end.
  return !std::exchange(challenged_, true);
}

bool RootLink::take_welcome(const wire::Header& header, const wire::WelcomePayload& payload, TimePoint now) noexcept {
  if (payload.slots < 2 || payload.slots > wire::kMaxSlots || payload.norm_slots != norm_slots_of(payload.slots) ||
      payload.codes_multiple != 1 || header.epoch == 0) {
    return false;
  }
  slots_ = payload.slots;
  window_bytes_ = payload.window_bytes;
  header_.epoch = header.epoch;
  joined_ = true;
  refusal_.reset();
  sent_at_ = now;
  return true;
}

bool RootLink::take_refusal(const Refusal& refusal, TimePoint now) noexcept {
  const bool is_news = !refusal_ || refusal_->reason != refusal.reason || refusal_->field != refusal.field;
  if (is_news || now - refused_at_ >= kRefusalAge) refused_since_ = now;
  refusal_ = refusal;
  refused_at_ = now;
  return is_news;
}

std::optional<Refusal> RootLink::why_waiting(TimePoint now) const noexcept {
  const Refusal not_yet{.reason = ErrorReason::kRacksIncomplete, .job_value = leaf_.racks};
  if (refusal_ && now - refused_at_ < kRefusalAge) {
    if (refusal_->reason == ErrorReason::kOtherTraining) {
      return now - refused_since_ < kContest ? not_yet : *refusal_;  // it may be over
    }
    if (refusal_->reason != ErrorReason::kDuplicateWorker) return leaf_.towards_workers(*refusal_);
    // About the rack's place, not the worker's.
    return now - refused_since_ < kContest ? not_yet : Refusal{.reason = ErrorReason::kBadConfig};
  }
  return is_root_silent(now) ? std::optional(not_yet) : std::nullopt;
}

bool RootLink::has_fallen_silent(TimePoint now) noexcept {
  return is_root_silent(now) && !std::exchange(told_of_silence_, true);
}

wire::Header RootLink::partial_sum_header(const wire::Header& contribution, TimePoint now) noexcept {
  wire::Header header = contribution;
  header.flags = std::uint8_t{0};
  header.code_bits = header_.code_bits;
  header.worker_id = header_.worker_id;
  header.num_workers = header_.num_workers;
  header.epoch = header_.epoch;
  sent_at_ = now;
  return header;
}

wire::Header RootLink::repeated_sum_header(const wire::Header& contribution, TimePoint now) noexcept {
  if (!silent_since_) silent_since_ = now;
  wire::Header header = partial_sum_header(contribution, now);
  header.flags = wire::kFlagRetransmit;
  return header;
}

bool RootLink::is_root_silent(TimePoint now) const noexcept {
  return silent_since_ && now - *silent_since_ >= kSilence;
}

bool RootLink::is_alive_due(TimePoint workers_heard_at, TimePoint now) const noexcept {
  return joined_ && workers_heard_at > sent_at_ && now - sent_at_ >= kAliveInterval;
}

bool RootLink::is_addressed(const wire::Header& header) const noexcept {
  return header.worker_id == header_.worker_id && header.num_workers == header_.num_workers &&
         header.code_bits == header_.code_bits && header.value_bits == header_.value_bits &&
         header.job_id == header_.job_id;
}

}  // namespace thc::ps
