#include "session/membership.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <utility>

namespace thc {
namespace {

constexpr Duration kFirstHelloInterval{20'000};
constexpr Duration kLastHelloInterval{500'000};
constexpr Duration kVerdictInterval{200'000};

/// The limits are also what a session is ready to allocate because a datagram says so.
bool is_possible(const wire::WelcomePayload& shape, std::uint32_t codes_per_packet, std::uint16_t port) noexcept {
  return std::has_single_bit(std::uint16_t{shape.codes_multiple}) && codes_per_packet % shape.codes_multiple == 0 &&
         shape.slots <= wire::kMaxSlots && shape.norm_slots >= 1 && shape.norm_slots < shape.slots &&
         shape.shards >= 1 && shape.shards <= wire::kMaxShards && port + shape.shards - 1 <= 0xffff;
}

bool is_same(const wire::WelcomePayload& a, const wire::WelcomePayload& b) noexcept {
  return a.slots == b.slots && a.norm_slots == b.norm_slots && a.shards == b.shards &&
         a.codes_multiple == b.codes_multiple;
}

std::span<const std::uint8_t> bytes_of(const wire::Header& header) noexcept {
  return {reinterpret_cast<const std::uint8_t*>(&header), sizeof(header)};
}

}  // namespace

Membership::Membership(io::Endpoint server, const SessionConfig& config, io::PacketIo& packet_io, Counters& counters,
                       const SlotShare& share, std::uint64_t nonce, TimePoint now)
    : server_(server),
      io_(packet_io),
      counters_(counters),
      hello_(make_header(wire::MessageType::kHello, config)),
      notice_(make_header(wire::MessageType::kGoodbye, config)),
      hello_payload_(hello_payload({.job_id = config.job_id,
                                    .worker_id = config.worker_id,
                                    .nonce = nonce,
                                    .cookie = 0,
                                    .run = config.run,
                                    .config = job_config(config)})),
      codes_per_packet_(config.codes_per_packet),
      share_(share),
      shards_(share.own_shards(), Shard{.next_hello = now, .hello_interval = kFirstHelloInterval}),
      waiting_(shards_.size()) {
  // Answers are made from the header that they answer.
  hello_.round = static_cast<std::uint32_t>(nonce);
  hello_.partition = static_cast<std::uint16_t>(nonce >> 32);
  hello_.chunk = static_cast<std::uint16_t>(nonce >> 48);
}

bool Membership::answers_hello(const wire::Header& header) const noexcept {
  return header.round == hello_.round && header.partition == hello_.partition && header.chunk == hello_.chunk;
}

Membership::Welcome Membership::take_welcome(const ServerMessage& message, TimePoint now) {
  const auto shape = payload_of<wire::WelcomePayload>(message);
  Shard* shard = waiting_shard(message.header.slot);
  if (!answers_hello(message.header) || !is_possible(shape, codes_per_packet_, server_.port) || shard == nullptr ||
      was_lost(*shard, message.header.epoch)) {
    return Welcome::kIgnored;
  }
  if (has_shape_ && !is_same(shape, shape_)) {
    return Welcome::kChanged;
  }
  accept(*shard, message.header);
  if (has_shape_) {
    return Welcome::kShard;
  }
  take_shape(shape, now);
  return Welcome::kShape;
}

void Membership::take_shape(const wire::WelcomePayload& shape, TimePoint now) {
  shape_ = shape;
  has_shape_ = true;
  share_.shards = shape.shards;
  waiting_ += share_.own_shards() - shards_.size();  // shard 0 has answered, or is not there yet
  shards_.resize(shape.shards, Shard{.next_hello = now, .hello_interval = kFirstHelloInterval});
}

Membership::Shard* Membership::waiting_shard(std::uint32_t index) noexcept {
  const bool is_waiting = index < shards_.size() && share_.has_shard(index) && !shards_[index].joined;
  return is_waiting ? &shards_[index] : nullptr;
}

bool Membership::was_lost(const Shard& shard, std::uint32_t epoch) noexcept {
  return shard.losses > 0 && std::ranges::find(shard.lost_epochs, epoch) != shard.lost_epochs.end();
}

io::Endpoint Membership::absent() const noexcept {
  std::uint32_t shard = share_.thread;
  while (shard + share_.threads < shards_.size() && shards_[shard].joined) {
    shard += share_.threads;
  }
  return address_of(shard);
}

void Membership::accept(Shard& shard, const wire::Header& welcome) noexcept {
  shard.joined = true;
  shard.epoch = welcome.epoch;
  shard.takes_abstentions = (welcome.flags & wire::kFlagAbstain) != 0;
  --waiting_;
}

void Membership::forget_epoch(Shard& shard) noexcept {
  shard.lost_epochs[shard.losses++ % shard.lost_epochs.size()] = shard.epoch;
}

void Membership::renew(std::uint32_t slot, std::uint32_t epoch) noexcept {
  Shard& shard = shards_[slot % shards_.size()];
  forget_epoch(shard);
  shard.epoch = epoch;
}

bool Membership::lose(std::uint32_t slot, TimePoint now) noexcept {
  Shard& shard = shards_[slot % shards_.size()];
  if (!shard.joined) {
    return false;
  }
  shard.joined = false;
  forget_epoch(shard);
  shard.next_hello = now;
  shard.hello_interval = kFirstHelloInterval;
  ++waiting_;
  return true;
}

void Membership::run_timers(TimePoint now) noexcept {
  if (waiting_ == 0) {
    return;
  }
  for (std::size_t i = share_.thread; i < shards_.size(); i += share_.threads) {
    Shard& shard = shards_[i];
    if (shard.joined || shard.next_hello > now) {
      continue;
    }
    send_hello(i);
    shard.challenged = false;
    shard.next_hello = now + shard.hello_interval;
    shard.hello_interval = std::min(2 * shard.hello_interval, kLastHelloInterval);
  }
}

TimePoint Membership::next_timer() const noexcept {
  TimePoint next = TimePoint::max();
  if (waiting_ != 0) {
    for (std::size_t i = share_.thread; i < shards_.size(); i += share_.threads) {
      next = std::min(next, shards_[i].joined ? TimePoint::max() : shards_[i].next_hello);
    }
  }
  return next;
}

void Membership::send_hello(std::size_t shard) noexcept {
  hello_.slot = static_cast<std::uint32_t>(shard);
  const be64_t cookie = shards_[shard].cookie;
  std::memcpy(hello_payload_.data() + offsetof(wire::HelloPayload, cookie), &cookie, sizeof(cookie));
  io_.send(address_of(hello_.slot), bytes_of(hello_), hello_payload_);
  io_.flush();  // the next one has another cookie
  counters_.add(Count::kHelloSent);
}

void Membership::send_notice(wire::MessageType type, std::size_t shard) noexcept {
  notice_.message_type = static_cast<std::uint8_t>(type);
  notice_.slot = static_cast<std::uint32_t>(shard);
  notice_.epoch = shards_[shard].epoch;
  io_.send(address_of(notice_.slot), bytes_of(notice_), {});
}

bool Membership::take_challenge(const ServerMessage& message) noexcept {
  Shard* shard = waiting_shard(message.header.slot);
  if (!answers_hello(message.header) || shard == nullptr) {
    return false;
  }
  shard->cookie = payload_of<wire::ChallengePayload>(message).cookie;
  // One answer to a HELLO that was due: a server that took no cookie would otherwise be asked without end.
  if (!std::exchange(shard->challenged, true)) {
    send_hello(message.header.slot);
  }
  return true;
}

bool Membership::answer_probe(const ServerMessage& message) noexcept {
  const std::uint32_t index = message.header.slot;
  if (index >= shards_.size() || !shards_[index].joined) {
    return false;
  }
  send_notice(wire::MessageType::kAlive, index);
  return true;
}

void Membership::await_verdict(std::uint32_t slot, TimePoint now) noexcept {
  if (Shard* shard = waiting_shard(slot); shard != nullptr) {
    shard->hello_interval = std::min(shard->hello_interval, kVerdictInterval);
    shard->next_hello = std::min(shard->next_hello, now + kVerdictInterval);
  }
}

void Membership::send_goodbye() noexcept {
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    if (shards_[i].joined) {
      send_notice(wire::MessageType::kGoodbye, i);
    }
  }
}

}  // namespace thc
