#include <algorithm>
#include <utility>

#include "session/refusal.h"
#include "session/server_link.h"

namespace thc {
namespace {

// A server answers every repeated packet, so after this silence the other workers are not at fault.
constexpr Duration kSilence{1'000'000};
// Nor is the path, after as many round trips.
constexpr int kSilentRoundTrips = 4;
// Between questions to a silent shard: several within kSilence.
constexpr Duration kQuestionPeriod{300'000};
// Between repeats for PROBE, which comes every 200 ms, sooner or later.
constexpr Duration kAskAgainPeriod{100'000};

}  // namespace

Duration ServerLink::silence() const noexcept { return std::max(kSilence, kSilentRoundTrips * rtt_.smoothed()); }

bool ServerLink::gives_up(const Lane& lane) const noexcept {
  return context_.config.loss_tolerant && lane.stream.stage() == Stage::kCodes;
}

void ServerLink::postpone_probes(TimePoint now) noexcept {
  norms_.losses.postpone_probes(now);
  codes_.losses.postpone_probes(now);
}

void ServerLink::run_timers(TimePoint now, bool drained) {
  membership_.run_timers(now);
  if (forbearance_.is_over(now)) {
    return context_.fail(*refusal_);
  }
  check_deadline(norms_.stream, now);
  check_deadline(codes_.stream, now);
  if (context_.failure() || !drained) {
    return;
  }
  find_lost(norms_, now);
  find_lost(codes_, now);
  if (now >= next_check_) {
    next_check_ = TimePoint::max();
    run_packet_timers(norms_, now);
    run_packet_timers(codes_, now);
  }
}

void ServerLink::find_lost(Lane& lane, TimePoint now) noexcept {
  if ((!std::exchange(lane.overtaking, false) && now < lane.next_loss) || gives_up(lane)) {
    return;
  }
  lane.next_loss = TimePoint::max();
  lane.stream.for_each_in_flight_below(lane.losses.overtaken_below(), [&](InFlight& packet) {
    if (packet.unsent || !membership_.joined(packet.slot)) {
      return;
    }
    const TimePoint lost_at = lane.losses.loss_time(packet);
    if (lost_at <= now) {
      rtt_.lost();
      next_check_ = now;  // timers may be shorter now
      packet.unsent = lane.unsent = true;
    } else {
      lane.next_loss = std::min(lane.next_loss, lost_at);
    }
  });
}

void ServerLink::repeat(Lane& lane, InFlight& packet, TimePoint now) noexcept {
  packet.retransmissions = static_cast<std::uint8_t>(std::min(packet.retransmissions + 1, 255));
  context_.counters.add(Count::kRetransmissions);
  send(lane, packet, now);
}

void ServerLink::run_packet_timers(Lane& lane, TimePoint now) {
  if (gives_up(lane)) {
    return give_up_late(lane, now);
  }
  for (std::size_t shard = 0; shard < lane.losses.shards(); ++shard) {
    if (lane.losses.probe_time(shard) > now || probe(lane, shard, now)) {
      next_check_ = std::min(next_check_, lane.losses.probe_time(shard));
    }
  }
}

void ServerLink::give_up_late(Lane& lane, TimePoint now) {
  lane.stream.for_each_in_flight([&](InFlight& packet) {
    const TimePoint late_at = packet.first_sent_at + context_.config.loss_timeout;
    if (now < late_at) {
      next_check_ = std::min(next_check_, late_at);
      return;
    }
    context_.counters.add(Count::kGivenUp);
    congestion_.on_lost(packet.mark, packet.bytes);
    congestion_.on_answered(packet.mark, 0, now);
    packet.operation().store_nothing(packet.chunk);
    release(lane, packet);
  });
}

ServerLink::Ends ServerLink::ends_in_flight(Lane& lane, std::size_t shard) noexcept {
  Ends ends;
  lane.stream.for_each_in_flight([&](InFlight& packet) {
    if (lane.losses.shard_number(packet) == shard) {
      ends.newest = &packet;
      ends.oldest = ends.oldest == nullptr ? &packet : ends.oldest;
    }
  });
  return ends;
}

void ServerLink::ask_again(Lane& lane, std::size_t shard, TimePoint now) noexcept {
  // Anybody can forge a PROBE without a key, and a search of everything in flight takes microseconds.
  TimePoint& asked_at = lane.losses.asked_at(shard);
  if (gives_up(lane) || elapsed(asked_at, now) < kAskAgainPeriod) return;
  asked_at = now;
  const auto [oldest, newest] = ends_in_flight(lane, shard);
  for (InFlight* packet : {newest, oldest}) {  // repeated once if they are the same
    if (packet != nullptr && !packet->unsent && elapsed(packet->sent_at, now) >= kAskAgainPeriod) {
      repeat(lane, *packet, now);
    }
  }
}

bool ServerLink::probe(Lane& lane, std::size_t shard, TimePoint now) noexcept {
  const auto [oldest, newest] = ends_in_flight(lane, shard);
  if (oldest != nullptr) {
    note_unanswered(lane, *oldest, now);
  }
  if (newest == nullptr || !membership_.joined(newest->slot)) {
    return false;  // all is sent again after the shard's answer to HELLO
  }
  if (rtt_.back_off(now)) {
    congestion_.on_timeout();
  }
  lane.losses.probed(shard);
  // The newest packet's result reveals earlier losses. It may have to wait for others, who wait for the oldest.
  repeat(lane, *newest, now);
  if (oldest != newest) {
    repeat(lane, *oldest, now);
  }
  return true;
}

void ServerLink::note_unanswered(const Lane& lane, const InFlight& oldest, TimePoint now) noexcept {
  // Late or repeatedly lost packets are no sign of death while others of the lane have results.
  const Duration unanswered = std::min(oldest.unanswered_for(), elapsed(lane.answered_at, now));
  const auto for_ms = static_cast<std::uint32_t>(unanswered.count() / 1'000);
  if (for_ms > unanswered_.for_ms) {
    unanswered_ = {.for_ms = for_ms, .port = address_of(oldest.slot).port};
    context_.state.tell_unanswered(index_, unanswered_);
  }
  const bool is_switch = membership_.shape().codes_multiple > 1;  // its control plane has other work
  if (unanswered >= silence() && now - asked_at_ >= kQuestionPeriod && !is_switch && membership_.joined(oldest.slot)) {
    asked_at_ = now;
    membership_.ask(oldest.slot);
  }
}

void ServerLink::forget_unanswered() noexcept {
  if (unanswered_.for_ms != 0) {
    unanswered_ = {};
    context_.state.tell_unanswered(index_, unanswered_);
  }
}

void ServerLink::check_deadline(const SlotStream& stream, TimePoint now) {
  const OperationPart* part = stream.first();
  if (part == nullptr || now < part->deadline) {
    return;
  }
  if (forbearance_.has_begun()) {
    return context_.fail(*refusal_);  // the tolerated refusal is why no result came
  }
  const Operation& operation = *part->operation;
  const TimePoint started_at = part->deadline - context_.config.operation_timeout;
  const InFlight* oldest = stream.oldest();
  const bool answered = heard_at_ > (oldest != nullptr ? oldest->first_sent_at : started_at);
  const bool silent = oldest != nullptr && oldest->sent_at > heard_at_ && elapsed(heard_at_, now) >= silence();
  const Duration unanswered_for = oldest != nullptr ? oldest->unanswered_for() : Duration::zero();
  const bool undelivered = unanswered_for >= silence();
  context_.fail(
      no_result(operation, server(), context_.config,
                {.packet = oldest,
                 .server_answered = answered,
                 .silent_for = answered && silent ? elapsed(heard_at_, now) : Duration::zero(),
                 .undelivered_for = answered && undelivered && !silent ? unanswered_for : Duration::zero(),
                 .ports = {address_of(0).port, oldest != nullptr ? address_of(oldest->slot).port : std::uint16_t{0},
                           static_cast<std::uint16_t>(address_of(0).port + membership_.shape().shards - 1)},
                 .large_packets = judge_size(stream, oldest, silent || undelivered),
                 .outsider = outsider_,
                 .rejoined = rejoined_at_ >= started_at,
                 .of_switch = membership_.shape().codes_multiple > 1}));
}

LargePackets ServerLink::judge_size(const SlotStream& stream, const InFlight* packet, bool silent) const noexcept {
  const bool has_arrived = packet != nullptr && !silent && packet->is_known_to_have_arrived();
  // Small rotation blocks have many norms. A packet of codes is smaller than its result.
  const bool is_small =
      stream.stage() == Stage::kNorm && (packet == nullptr || !is_larger_than_ethernet(packet->bytes));
  const TimePoint answered_at = context_.state.codes_answered_at(index_);
  if (has_arrived || is_small || (packet != nullptr && answered_at >= packet->first_sent_at)) {
    return LargePackets::kFit;
  }
  return answered_at == TimePoint::min() ? LargePackets::kNeverFit : LargePackets::kFitNoMore;
}

TimePoint ServerLink::next_timer() const noexcept {
  TimePoint next = std::min(
      {next_check_, next_send_, norms_.next_loss, codes_.next_loss, forbearance_.end(), membership_.next_timer()});
  for (const Lane* lane : {&norms_, &codes_}) {
    if (const OperationPart* part = lane->stream.first(); part != nullptr) {
      next = std::min(next, part->deadline);
    }
  }
  return next;
}

}  // namespace thc
