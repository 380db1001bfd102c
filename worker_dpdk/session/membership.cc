#include "session/membership.h"

#include <algorithm>
#include <bit>

namespace thc {
namespace {

constexpr Duration kFirstHelloInterval{20'000};
constexpr Duration kLastHelloInterval{500'000};

/// The limits are also what a session is ready to allocate because a datagram says so.
bool is_possible(const wire::WelcomePayload& shape, std::uint32_t codes_per_packet) noexcept {
  return std::has_single_bit(std::uint16_t{shape.codes_multiple}) && codes_per_packet % shape.codes_multiple == 0 &&
         shape.slots <= wire::kMaxSlots && shape.norm_slots >= 1 && shape.norm_slots < shape.slots &&
         shape.shards >= 1 && shape.shards <= wire::kMaxShards;
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
                       std::uint64_t nonce, TimePoint now)
    : server_(server),
      io_(packet_io),
      counters_(counters),
      hello_(make_header(wire::MessageType::kHello, config)),
      goodbye_(make_header(wire::MessageType::kGoodbye, config)),
      hello_payload_(hello_payload(
          {.job_id = config.job_id, .worker_id = config.worker_id, .nonce = nonce, .config = job_config(config)})),
      codes_per_packet_(config.codes_per_packet),
      shards_(1, Shard{.next_hello = now, .hello_interval = kFirstHelloInterval}),
      waiting_(1) {
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
  const std::uint32_t shard = message.header.slot;
  if (!answers_hello(message.header) || !is_possible(shape, codes_per_packet_) || shard >= shards_.size() ||
      shards_[shard].joined) {
    return Welcome::kIgnored;
  }
  if (has_shape_ && !is_same(shape, shape_)) {
    return Welcome::kChanged;
  }
  accept(shards_[shard], message.header.epoch);
  if (has_shape_) {
    return Welcome::kShard;
  }
  shape_ = shape;
  has_shape_ = true;
  shards_.resize(shape.shards, Shard{.next_hello = now, .hello_interval = kFirstHelloInterval});
  waiting_ += shards_.size() - 1;
  return Welcome::kShape;
}

void Membership::accept(Shard& shard, std::uint32_t epoch) noexcept {
  shard.joined = true;
  shard.epoch = epoch;
  --waiting_;
}

bool Membership::lose(std::uint32_t slot, TimePoint now) noexcept {
  Shard& shard = shards_[slot % shards_.size()];
  if (!shard.joined) {
    return false;
  }
  shard = {.joined = false, .epoch = shard.epoch, .next_hello = now, .hello_interval = kFirstHelloInterval};
  ++waiting_;
  return true;
}

void Membership::run_timers(TimePoint now) noexcept {
  if (waiting_ == 0) {
    return;
  }
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    Shard& shard = shards_[i];
    if (shard.joined || shard.next_hello > now) {
      continue;
    }
    hello_.slot = static_cast<std::uint32_t>(i);
    io_.send(server_, bytes_of(hello_), hello_payload_);
    io_.flush();  // one by one: the back end may merge equal-sized datagrams, which then all reach one shard
    counters_.add(Count::kHelloSent);
    shard.next_hello = now + shard.hello_interval;
    shard.hello_interval = std::min(2 * shard.hello_interval, kLastHelloInterval);
  }
}

TimePoint Membership::next_timer() const noexcept {
  TimePoint next = TimePoint::max();
  if (waiting_ != 0) {
    for (const Shard& shard : shards_) {
      next = std::min(next, shard.joined ? TimePoint::max() : shard.next_hello);
    }
  }
  return next;
}

void Membership::send_goodbye() noexcept {
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    if (shards_[i].joined) {
      goodbye_.slot = static_cast<std::uint32_t>(i);
      goodbye_.epoch = shards_[i].epoch;
      io_.send(server_, bytes_of(goodbye_), {});
      io_.flush();  // one by one, as HELLO
    }
  }
}

}  // namespace thc
