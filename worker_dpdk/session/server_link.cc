#include "session/server_link.h"

#include <algorithm>
#include <utility>

#include "session/refusal.h"
#include "thc/lookup_sum.h"

namespace thc {

ServerLink::ServerLink(std::size_t server, LinkContext& context, std::uint64_t nonce, TimePoint now)
    : context_(context),
      index_(server),
      membership_(context.config.servers[server], context.config, context.packet_io, context.counters, nonce, now),
      rtt_(context.packet_io.is_own_host(context.config.servers[server]) ? kOwnHostBounds : RttBounds{}),
      norm_header_(make_header(wire::MessageType::kNorm, context.config)),
      codes_header_(make_header(wire::MessageType::kCodes, context.config)) {}

void ServerLink::enqueue(std::shared_ptr<Operation> operation, TimePoint deadline) {
  Lane& lane = operation->stage() == Stage::kNorm ? norms_ : codes_;
  lane.stream.enqueue(std::move(operation), deadline);
}

void ServerLink::open_streams() {
  const SessionConfig& config = context_.config;
  const wire::WelcomePayload& shape = membership_.shape();
  const std::size_t codes = shape.codes_multiple;
  norms_.stream.open(0, shape.norm_slots, std::max<std::size_t>(codes * config.value_bits / 32, 1));
  codes_.stream.open(shape.norm_slots, shape.slots - shape.norm_slots, codes);
  norms_.losses.open(shape.shards);
  codes_.losses.open(shape.shards);
  // Limited by the server, and by this end's buffer when all results come at once.
  const std::size_t results_bytes = context_.packet_io.receive_buffer_bytes() / config.servers.size();
  const unsigned bits = config.table.bits();
  most_in_flight_bytes_ =
      std::min<std::size_t>(shape.window_bytes, results_bytes * bits / std::max(config.value_bits, bits));
  const std::size_t code_bytes = std::size_t{config.codes_per_packet} * bits / 8;
  congestion_.open(sizeof(wire::Header) + code_bytes, most_in_flight_bytes_,
                   {.server_tells_last = membership_.tells_last(),
                    .is_own_host = context_.packet_io.is_own_host(server()),
                    .awaits_all = config.quorum == config.num_workers,
                    .workers = config.num_workers});
}

void ServerLink::take(const ServerMessage& message, TimePoint now) {
  heard_at_ = now;
  context_.state.tell_heard(index_, now);
  switch (message.type) {
    case wire::MessageType::kWelcome:
      return take_welcome(message, now);
    case wire::MessageType::kChallenge:
      return context_.counters.add(Count::kStale, membership_.take_challenge(message) ? 0 : 1);
    case wire::MessageType::kProbe:
      return take_probe(message, now);
    case wire::MessageType::kError:
      return take_error(message, now);
    case wire::MessageType::kStraggler:
      return take_straggler(message, now);
    default:
      return take_result(message, now);
  }
}

void ServerLink::take_probe(const ServerMessage& message, TimePoint now) noexcept {
  if (!membership_.answer_probe(message)) {
    return context_.counters.add(Count::kStale);
  }
  ask_again(norms_, message.header.slot, now);
  ask_again(codes_, message.header.slot, now);
}

void ServerLink::take_welcome(const ServerMessage& message, TimePoint now) {
  const Membership::Welcome welcome = membership_.take_welcome(message, now);
  if (welcome != Membership::Welcome::kIgnored) {  // later shards may fail anew
    refusal_.reset();
    forbearance_.stop();
  }
  switch (welcome) {
    case Membership::Welcome::kIgnored:
      context_.counters.add(Count::kStale);
      return;
    case Membership::Welcome::kChanged:
      return context_.fail(lost_round(server(),
                                      "was restarted: it has another number of slots or shards, or packets of another "
                                      "size, now"));
    case Membership::Welcome::kShape:
      return open_streams();
    case Membership::Welcome::kShard:
      return resend_shard(message.header.slot, now);
  }
}

void ServerLink::take_error(const ServerMessage& message, TimePoint now) {
  const auto error = payload_of<wire::ErrorPayload>(message);
  const auto reason = static_cast<wire::ErrorReason>(std::uint16_t{error.reason});
  if (message.header.epoch == 0 && !joined()) {
    if (!membership_.answers_hello(message.header)) {
      context_.counters.add(Count::kStale);
      return;
    }
    return take_hello_refusal(message, reason, now);
  }
  if (!membership_.joined(message.header.slot) || message.header.epoch != membership_.epoch(message.header.slot)) {
    context_.counters.add(Count::kStale);
    return;
  }
  if (reason == wire::ErrorReason::kUnknownJob) {
    return rejoin(message.header.slot, now);
  }
  if (reason == wire::ErrorReason::kNewEpoch) {
    return take_new_epoch(message.header.slot, error.job_value, now);
  }
  if (reason == wire::ErrorReason::kOrderMismatch) {
    return take_order_mismatch(message.header, now);
  }
  const bool of_racks = reason == wire::ErrorReason::kRacksIncomplete;
  if (reason != wire::ErrorReason::kIncomplete && !of_racks) {
    return context_.fail(refusal(message, server(), context_.config));
  }
  context_.counters.add(Count::kIncompleteReceived);
  outsider_ =
      of_racks ? Outsider{} : Outsider{static_cast<wire::ConfigField>(std::uint16_t{error.field}), error.job_value};
  if (InFlight* packet = match(message); packet != nullptr) {
    packet->noticed_at = now;
    lane_of(packet->slot).answered_at = now;
    forget_unanswered();
    // The own packet has arrived, even if it abstains.
    packet->seen_workers = of_racks ? 0 : error.worker_bitmap | std::uint64_t{1} << context_.config.worker_id;
    packet->seen_racks = of_racks ? std::uint64_t{error.worker_bitmap} : 0;
    packet->racks = of_racks ? static_cast<std::uint8_t>(error.job_value) : std::uint8_t{0};
    if (packet->retransmissions == 1) {  // only repeated packets get notices
      sample_round_trip(elapsed(packet->sent_at, now), true, now);
    }
    lane_of(packet->slot).losses.noticed(*packet, now);
    congestion_.on_answered(packet->mark, 0, now);
  }
}

void ServerLink::take_order_mismatch(const wire::Header& about, TimePoint now) {
  // Workers that average different gradients will learn more from the norms soon.
  if (!forbearance_.has_begun()) {
    refusal_ = order_mismatch(about, server(), context_.config);
    forbearance_.begin(now);
  }
}

void ServerLink::take_new_epoch(std::uint32_t slot, std::uint32_t epoch, TimePoint now) noexcept {
  if (epoch == 0) {
    context_.counters.add(Count::kMalformed);
    return;
  }
  membership_.renew(slot, epoch);
  context_.counters.add(Count::kNewEpochs);
  resend_shard(slot, now);
}

void ServerLink::sample_round_trip(Duration round_trip, bool networks_alone, TimePoint now) noexcept {
  if (rtt_.backed_off()) {
    next_check_ = now;  // timers get shorter again
  }
  rtt_.sample(round_trip);
  congestion_.on_round_trip(round_trip, networks_alone);
  const auto least_us = congestion_.path().least_round_trip().count();
  context_.counters.set(Count::kSmoothedRttUs, static_cast<std::uint64_t>(rtt_.smoothed().count()));
  context_.counters.set(Count::kLeastRttUs, static_cast<std::uint64_t>(least_us));
}

void ServerLink::take_hello_refusal(const ServerMessage& message, wire::ErrorReason reason, TimePoint now) {
  if (reason == wire::ErrorReason::kRacksIncomplete) {  // no refusal: the root may be about to start
    refusal_ = no_root(server(), context_.config);
    forbearance_.stop();  // the rack's server has freed the place that it refused before
    return;
  }
  const SessionConfig& config = context_.config;
  if (config.others_follow && config.servers.size() > 1 && says_larger_packets(message, config)) {
    refusal_ = refusal(message, server(), config);  // final at the connect deadline
    forbearance_.stop();
    return membership_.await_verdict(message.header.slot, now);
  }
  // Another worker at another address may start the job. A job that ends makes room, or was another training's.
  if (!is_contest(reason) && reason != wire::ErrorReason::kTooManyJobs) {
    return context_.fail(refusal(message, server(), config));
  }
  membership_.await_verdict(message.header.slot, now);
  if (!forbearance_.has_begun()) {  // repeat HELLO: the place may be this worker's before a crash
    refusal_ = refusal(message, server(), config);
    forbearance_.begin(now);
  }
}

Failure ServerLink::why_not_joined() const {
  if (refusal_) {
    return *refusal_;
  }
  const io::Endpoint absent = membership_.absent();
  return absent == server() ? no_welcome(absent, context_.config)
                            : no_welcome_of_shard(absent, server(), membership_.shape().shards, context_.config);
}

InFlight* ServerLink::match(const ServerMessage& message) noexcept {
  const wire::Header& header = message.header;
  InFlight* packet = lane_of(header.slot).stream.find(header.slot);
  if (packet == nullptr) {
    context_.counters.add(Count::kMalformed);
    return nullptr;
  }
  if (header.epoch != membership_.epoch(header.slot) || header.round != packet->round) {
    context_.counters.add(Count::kStale);
    return nullptr;
  }
  if (packet->part == nullptr) {
    context_.counters.add(Count::kDuplicates);
    return nullptr;
  }
  return packet;
}

void ServerLink::take_result(const ServerMessage& message, TimePoint now) {
  InFlight* packet = match(message);
  if (packet == nullptr) {
    return;
  }
  Lane& lane = lane_of(packet->slot);
  const SlotStream& stream = lane.stream;
  const wire::Header& header = message.header;
  const auto expected = stream.stage() == Stage::kNorm ? wire::MessageType::kMaxNorm : wire::MessageType::kAggregate;
  if (message.type != expected || header.partition != packet->operation().partition() ||
      header.chunk != packet->chunk || header.contributions < context_.config.quorum ||
      header.contributions > context_.config.num_workers ||
      (stream.stage() == Stage::kNorm && has_negative_be(message.payload.data(), header.payload_count))) {
    context_.counters.add(Count::kMalformed);
    return;
  }
  if (!packet->operation().takes_count(packet->chunk, header.payload_count)) {
    context_.counters.add(Count::kMalformed);
    return take_order_mismatch(header, now);  // the other workers have another number
  }
  packet->operation().store(packet->chunk, message.payload.data(), header.payload_count, header.contributions);
  context_.differs |= packet->operation().differs();
  if (stream.stage() == Stage::kCodes) {
    context_.state.tell_codes_answered(index_, now);
  }
  context_.counters.add(stream.stage() == Stage::kNorm ? Count::kMaxNormReceived : Count::kAggregateReceived);
  context_.counters.add(Count::kBytesReceived, sizeof(header) + message.payload.size());
  context_.counters.add(Count::kPartialReceived, header.contributions < context_.config.num_workers ? 1 : 0);
  if (message.congested) {
    congestion_.on_marked();
  }
  const bool last = (header.flags & wire::kFlagLast) != 0;
  if (packet->retransmissions == 0 && lane.losses.is_round_trip(*packet)) {
    sample_round_trip(elapsed(packet->sent_at, now), last, now);
  }
  note_answer(lane, *packet, last, now);
  release(lane, *packet);
}

void ServerLink::take_straggler(const ServerMessage& message, TimePoint now) {
  InFlight* packet = match(message);
  if (packet == nullptr) {
    return;
  }
  context_.counters.add(Count::kStragglerReceived);
  Lane& lane = lane_of(packet->slot);
  const bool may_be_left_behind = context_.config.quorum < context_.config.num_workers || gives_up(lane);
  if (!may_be_left_behind) {
    const std::string lost = rejoined_at_ == TimePoint{} ? "says that " : "knew the job no longer, and now ";
    return context_.fail(lost_round(server(), lost + "the other workers are already past slot " +
                                                  std::to_string(packet->slot) + " round " +
                                                  std::to_string(packet->round)));
  }
  packet->operation().store_nothing(packet->chunk);
  if (lane.stream.stage() == Stage::kNorm) {
    context_.state.tell_left_behind(packet->operation().partition());
  }
  note_answer(lane, *packet, false, now);
  release(lane, *packet);
}

void ServerLink::note_answer(Lane& lane, const InFlight& packet, bool last, TimePoint now) noexcept {
  const bool first = lane.losses.answered(packet, membership_.tells_last() && !last, now);
  if (!first) {
    // The packet or its result was lost, so the repeat was needed.
    congestion_.on_lost(packet.first_mark, packet.bytes);
  }
  lane.answered_at = now;
  lane.overtaking = true;
  if (const Duration longest = elapsed(packet.first_sent_at, now);
      rtt_.smoothed() == Duration::zero() && longest > rtt_.bounds().max) {
    // All packets were repeated before the first result, and would be in every round: prefer a sample that is too long.
    rtt_.sample(std::min(longest, 4 * rtt_.bounds().max));
  }
  if (rtt_.backed_off()) {
    rtt_.confirm(elapsed(packet.sent_at, now));
    next_check_ = now;  // timers get shorter again
  }
  congestion_.on_answered(first ? packet.first_mark : packet.mark, packet.bytes, now);
  context_.counters.set(Count::kWindowBytes, congestion_.window_bytes());
  context_.counters.set(Count::kDeliveryBps, static_cast<std::uint64_t>(8e6 * congestion_.path().rate()));
}

void ServerLink::release(Lane& lane, InFlight& packet) {
  in_flight_bytes_ -= packet.bytes;
  forget_unanswered();
  lane.losses.released(packet);
  if (std::shared_ptr<Operation> operation = lane.stream.release(packet); operation != nullptr) {
    context_.finished.push_back(std::move(operation));
  }
}

void ServerLink::rejoin(std::uint32_t slot, TimePoint now) {
  if (context_.config.quorum < context_.config.num_workers) {
    // Workers with a result would not repeat its round, but a quorum of the others could complete it with another set
    // of contributions: two maximum norms for one partition, and wrong sums from then on.
    return context_.fail(lost_round(server(),
                                    "does not know the job any more (it was restarted, or dropped the job after "
                                    "--idle-timeout), and rounds of a quorum cannot be repeated; restart all workers"));
  }
  if (membership_.lose(slot, now)) {
    rejoined_at_ = now;
    context_.counters.add(Count::kRejoins);
  }
}

void ServerLink::abandon() {
  for (Lane* lane : {&norms_, &codes_}) {
    for (std::shared_ptr<Operation>& operation : lane->stream.abandon()) {
      context_.abandoned.push_back(std::move(operation));
    }
  }
  in_flight_bytes_ = 0;
  congestion_.forget_pipe();
  next_check_ = next_send_ = TimePoint::max();
}

}  // namespace thc
