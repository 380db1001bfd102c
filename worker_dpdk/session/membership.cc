#include "session/membership.h"

#include <algorithm>
#include <bit>

namespace thc {
namespace {

constexpr Join::Pace kPace{.first = Duration(20'000), .last = Duration(500'000)};

/// Also limits the memory that a datagram can make a session allocate.
bool is_possible(const wire::WelcomePayload& shape, std::uint32_t codes_per_packet, std::uint16_t port) noexcept {
  return std::has_single_bit(std::uint16_t{shape.codes_multiple}) && codes_per_packet % shape.codes_multiple == 0 &&
         shape.slots <= wire::kMaxSlots && shape.norm_slots >= 1 && shape.norm_slots < shape.slots &&
         shape.shards >= 1 && shape.shards <= wire::kMaxShards && port + shape.shards - 1 <= 0xffff;
}

bool is_same(const wire::WelcomePayload& a, const wire::WelcomePayload& b) noexcept {
  return a.slots == b.slots && a.norm_slots == b.norm_slots && a.shards == b.shards &&
         a.codes_multiple == b.codes_multiple;
}

}  // namespace

Membership::Membership(io::Endpoint server, const SessionConfig& config, io::PacketIo& packet_io, Counters& counters,
                       std::uint64_t nonce, TimePoint now)
    : server_(server), io_(packet_io), counters_(counters), hello_(hello_of(config, nonce)) {
  add_shards(1, now);
}

void Membership::add_shards(std::uint32_t shards, TimePoint now) {
  for (auto shard = static_cast<std::uint32_t>(shards_.size()); shard < shards; ++shard) {
    shards_.emplace_back(hello_, shard, kPace, now);
  }
}

Membership::Welcome Membership::take_welcome(const ServerMessage& message, TimePoint now) {
  const auto shape = payload_of<wire::WelcomePayload>(message);
  const std::uint32_t index = message.header.slot;
  if (index < shards_.size() && shards_[index].is_found_again(message.header)) {
    return Welcome::kShard;
  }
  Join* shard = waiting_shard(index);
  if (!is_possible(shape, hello_.config.codes_per_packet, server_.port) || shard == nullptr ||
      !shard->is_news(message.header)) {
    return Welcome::kIgnored;
  }
  if (has_shape_ && !is_same(shape, shape_)) {
    return Welcome::kChanged;
  }
  shard->take_welcome(message.header);
  --waiting_;
  if (has_shape_) {
    return Welcome::kShard;
  }
  shape_ = shape;
  tells_last_ = (message.header.flags & wire::kFlagLast) != 0;
  has_shape_ = true;
  waiting_ += shape.shards - shards_.size();
  add_shards(shape.shards, now);
  return Welcome::kShape;
}

Join* Membership::waiting_shard(std::uint32_t index) noexcept {
  const bool is_waiting = index < shards_.size() && !shards_[index].joined();
  return is_waiting ? &shards_[index] : nullptr;
}

io::Endpoint Membership::absent() const noexcept {
  std::uint32_t shard = 0;
  while (shard + 1 < shards_.size() && shards_[shard].joined()) {
    ++shard;
  }
  return address_of(shard);
}

bool Membership::lose(std::uint32_t slot, TimePoint now) noexcept {
  Join& shard = shard_of(slot);
  if (!shard.joined()) {
    return false;
  }
  shard.lose(now);
  ++waiting_;
  return true;
}

void Membership::run_timers(TimePoint now) noexcept {
  if (waiting_ == 0) {
    return;
  }
  for (Join& shard : shards_) {
    if (shard.is_hello_due(now)) {
      send_hello(shard.say_hello(now));
    }
  }
}

TimePoint Membership::next_timer() const noexcept {
  TimePoint next = TimePoint::max();
  if (waiting_ != 0) {
    for (const Join& shard : shards_) {
      next = std::min(next, shard.next_hello());
    }
  }
  return next;
}

void Membership::send_hello(const Join::Message& hello) noexcept {
  io_.send(address_of(hello.header.slot), io::bytes_of(hello.header), hello.payload);
  io_.flush();  // the payload changes with the next cookie
  counters_.add(Count::kHelloSent);
}

void Membership::send_notice(wire::MessageType type, std::uint32_t shard) noexcept {
  io_.send(address_of(shard), io::bytes_of(shards_[shard].notice(type)), {});
}

bool Membership::take_challenge(const ServerMessage& message) noexcept {
  const std::uint32_t index = message.header.slot;
  if (index >= shards_.size() || !shards_[index].is_challenge_awaited(message.header)) {
    return false;
  }
  const auto& payload = payload_of<wire::ChallengePayload>(message);
  if (const auto hello = shards_[index].take_challenge(message.header, payload)) {
    send_hello(*hello);
  }
  return true;
}

bool Membership::answer_probe(const ServerMessage& message) noexcept {
  const std::uint32_t index = message.header.slot;
  if (index >= shards_.size() || !shards_[index].joined()) {
    return false;
  }
  send_notice(wire::MessageType::kAlive, index);
  return true;
}

void Membership::await_verdict(std::uint32_t slot, TimePoint now) noexcept {
  if (Join* shard = waiting_shard(slot); shard != nullptr) {
    shard->await_verdict(now);
  }
}

void Membership::ask(std::uint32_t slot) noexcept {
  Join& first = shards_.front();
  Join& shard = shard_of(slot);
  if (shard.joined()) {
    send_hello(shard.ask());
  }
  if (&first != &shard && first.joined()) {
    send_hello(first.ask());
  }
}

void Membership::send_goodbye() noexcept {
  for (std::uint32_t i = 0; i < shards_.size(); ++i) {
    if (shards_[i].joined()) {
      send_notice(wire::MessageType::kGoodbye, i);
    }
  }
}

}  // namespace thc
