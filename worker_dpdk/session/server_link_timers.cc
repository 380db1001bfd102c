// What a link does when nothing arrives: repeats packets, gives them up, finds out that a deadline is over.
#include <algorithm>

#include "session/refusal.h"
#include "session/server_link.h"

namespace thc {
namespace {

// Repeated packets compete with new ones and with the peers that are late: at most this much per period,
// divided among polling threads.
constexpr std::size_t kRepeatBudgetBytes = 64 * 1024;
constexpr Duration kRepeatPeriod{1'000};
// A server answers every repeated packet: this long without an answer, it is not the other workers that are missing.
constexpr Duration kSilence{1'000'000};

}  // namespace

TimePoint ServerLink::repeat_time(const SlotStream& stream, const InFlight& packet) const noexcept {
  if (packet.unsent) {
    return packet.sent_at + kRepeatPeriod;
  }
  const TimePoint lost_at = loss_time(stream, packet);
  return lost_at == TimePoint::max() ? packet.sent_at + rtt_.timeout(packet.retransmissions) : lost_at;
}

TimePoint ServerLink::loss_time(const SlotStream& stream, const InFlight& packet) const noexcept {
  const bool may_be_lost = context_.config.delivery == Delivery::kLossTolerant && stream.stage() == Stage::kCodes;
  return may_be_lost ? packet.first_sent_at + context_.config.loss_timeout : TimePoint::max();
}

void ServerLink::give_up(SlotStream& stream, InFlight& packet) {
  context_.counters.add(Count::kGivenUp);
  packet.operation().store_nothing(packet.chunk);
  release(stream, packet);
}

std::size_t ServerLink::repeat_budget_bytes() const noexcept {
  const SlotShare& share = membership_.share();
  const SessionConfig& config = context_.config;
  const std::size_t largest_bytes = sizeof(wire::Header) + std::size_t{config.codes_per_packet} * config.value_bits / 8;
  return std::max(kRepeatBudgetBytes * share.own_shards() / share.shards, largest_bytes);
}

void ServerLink::run_timers(TimePoint now) {
  if (!membership_.has_shape()) {
    if (const wire::WelcomePayload* shape = context_.group.shape(index_); shape != nullptr) {
      membership_.take_shape(*shape, now);
      open_streams();
    }
  }
  membership_.run_timers(now);
  if (now >= refused_until_) {
    return fail(*refusal_);
  }
  check_deadline(norms_, now);
  check_deadline(codes_, now);
  if (now < next_check_ || context_.failure) {
    return;
  }
  next_check_ = TimePoint::max();
  repeat_budget_bytes_ = repeat_budget_bytes();
  check_packets(norms_, now);
  check_packets(codes_, now);
}

void ServerLink::check_packets(SlotStream& stream, TimePoint now) {
  stream.for_each_in_flight([&](InFlight& packet) {
    const TimePoint lost_at = loss_time(stream, packet);
    if (now >= lost_at) {
      return give_up(stream, packet);
    }
    if (!membership_.joined(packet.slot)) {
      next_check_ = std::min(next_check_, lost_at);
      return;  // sent again when the shard has answered HELLO
    }
    TimePoint due = repeat_time(stream, packet);
    if (due <= now && packet.bytes <= repeat_budget_bytes_) {
      repeat_budget_bytes_ -= packet.bytes;
      rtt_.back_off(now);
      packet.retransmissions = static_cast<std::uint8_t>(std::min(packet.retransmissions + 1, 255));
      context_.counters.add(Count::kRetransmissions);
      send(stream, packet, now);
      due = repeat_time(stream, packet);
    }
    next_check_ = std::min(next_check_, std::max(due, now + kRepeatPeriod));
  });
}

void ServerLink::check_deadline(const SlotStream& stream, TimePoint now) {
  const OperationPart* part = stream.first();
  if (part == nullptr || now < part->deadline) {
    return;
  }
  const Operation& operation = *part->operation;
  const TimePoint started_at = part->deadline - context_.config.operation_timeout;
  const InFlight* oldest = stream.oldest();
  const bool answered = heard_at_ > (oldest != nullptr ? oldest->first_sent_at : started_at);
  const bool silent = oldest != nullptr && oldest->sent_at > heard_at_ && elapsed(heard_at_, now) >= kSilence;
  fail(no_result(operation, server(), context_.config,
                 {.packet = oldest,
                  .server_answered = answered,
                  .silent_for = answered && silent ? elapsed(heard_at_, now) : Duration::zero(),
                  .only_codes_are_lost = operation.stage() == Stage::kCodes && !context_.group.codes_answered(index_) &&
                                         (oldest == nullptr || silent || !oldest->is_known_to_have_arrived()),
                  .rejoined = rejoined_at_ >= started_at}));
}

TimePoint ServerLink::next_timer() const noexcept {
  TimePoint next = std::min({next_check_, refused_until_, membership_.next_timer()});
  for (const SlotStream* stream : {&norms_, &codes_}) {
    if (const OperationPart* part = stream->first(); part != nullptr) {
      next = std::min(next, part->deadline);
    }
  }
  return next;
}

}  // namespace thc
