#include "thc/join.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace thc {
namespace {

constexpr std::chrono::milliseconds kVerdictInterval{wire::kProbeIntervalMs};

/// Answers are made from the header of the question, so they repeat its nonce.
void put_nonce(wire::Header& header, std::uint64_t nonce) noexcept {
  header.round = static_cast<std::uint32_t>(nonce);
  header.partition = static_cast<std::uint16_t>(nonce >> 32);
  header.chunk = static_cast<std::uint16_t>(nonce >> 48);
}

void put_cookie(std::span<std::uint8_t> payload, be64_t cookie) noexcept {
  std::memcpy(payload.data() + offsetof(wire::HelloPayload, cookie), &cookie, sizeof(cookie));
}

}  // namespace

bool repeats_nonce(const wire::Header& answer, std::uint64_t nonce) noexcept {
  wire::Header hello{};
  put_nonce(hello, nonce);
  return answer.round == hello.round && answer.partition == hello.partition && answer.chunk == hello.chunk;
}

Join::Join(const Hello& hello, std::uint32_t shard, Pace pace, TimePoint now)
    : payload_(hello_payload(hello)), nonce_(hello.nonce), pace_(pace), interval_(pace.first), next_hello_(now) {
  header_.version = wire::kVersion;
  header_.code_bits = static_cast<std::uint8_t>(hello.config.table.bits());
  header_.value_bits = hello.config.value_bits;
  header_.worker_id = hello.worker_id;
  header_.num_workers = hello.config.num_workers;
  header_.job_id = hello.job_id;
  header_.slot = shard;
}

Join::Message Join::hello() const noexcept {
  wire::Header header = notice(wire::MessageType::kHello);
  if (!joined_) header.epoch = std::uint32_t{0};
  put_nonce(header, nonce_);
  return {.header = header, .payload = payload_};
}

Join::Message Join::say_hello(TimePoint now) noexcept {
  challenged_ = false;
  next_hello_ = now + interval_;
  interval_ = std::min(2 * interval_, pace_.last);
  return hello();
}

Join::Message Join::ask() noexcept {
  put_cookie(payload_, std::uint64_t{0});
  challenged_ = false;
  return hello();
}

void Join::await_verdict(TimePoint now) noexcept {
  interval_ = std::min<Duration>(interval_, kVerdictInterval);
  next_hello_ = std::min(next_hello_, now + kVerdictInterval);
}

bool Join::is_awaited(const wire::Header& header) const noexcept {
  return !joined_ && header.slot == header_.slot && repeats_nonce(header, nonce_);
}

bool Join::is_challenge_awaited(const wire::Header& header) const noexcept {
  return (!joined_ || !challenged_) && header.slot == header_.slot && repeats_nonce(header, nonce_);
}

std::optional<Join::Message> Join::take_challenge(const wire::Header& header,
                                                  const wire::ChallengePayload& payload) noexcept {
  header_.flags = static_cast<std::uint8_t>(header.flags & wire::kFlagChecksum);
  put_cookie(payload_, payload.cookie);
  if (std::exchange(challenged_, true)) return std::nullopt;
  return hello();
}

bool Join::is_news(const wire::Header& welcome) const noexcept {
  const std::uint32_t epoch = welcome.epoch;
  return is_awaited(welcome) && (losses_ == 0 || std::ranges::find(lost_epochs_, epoch) == lost_epochs_.end());
}

bool Join::is_found_again(const wire::Header& welcome) const noexcept {
  return joined_ && welcome.slot == header_.slot && repeats_nonce(welcome, nonce_) && welcome.epoch == header_.epoch &&
         (welcome.flags & wire::kFlagRetransmit) != 0;
}

void Join::take_welcome(const wire::Header& welcome) noexcept {
  joined_ = challenged_ = true;
  header_.epoch = welcome.epoch;
  takes_abstentions_ = (welcome.flags & wire::kFlagAbstain) != 0;
}

void Join::forget_epoch() noexcept { lost_epochs_[losses_++ % lost_epochs_.size()] = header_.epoch; }

void Join::renew(std::uint32_t epoch) noexcept {
  forget_epoch();
  header_.epoch = epoch;
}

void Join::lose(TimePoint now) noexcept {
  forget_epoch();
  joined_ = false;
  next_hello_ = now;
  interval_ = pace_.first;
}

void Join::begin_again(std::uint64_t nonce, std::uint64_t run) noexcept {
  nonce_ = nonce;
  wire::HelloPayload payload;
  std::memcpy(&payload, payload_.data(), sizeof(payload));
  payload.nonce = nonce;
  payload.cookie = std::uint64_t{0};
  payload.run = run;
  std::memcpy(payload_.data(), &payload, sizeof(payload));
  header_.epoch = std::uint32_t{0};
  joined_ = false;
  next_hello_ = {};
  interval_ = pace_.first;
  lost_epochs_.fill(0);
  losses_ = 0;
}

wire::Header Join::notice(wire::MessageType type) const noexcept {
  wire::Header header = header_;
  header.message_type = static_cast<std::uint8_t>(type);
  return header;
}

}  // namespace thc
