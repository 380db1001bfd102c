#include "leaf.h"

#include <algorithm>
#include <cstring>

namespace thc::ps {
namespace {

using wire::ErrorReason;
using wire::MessageType;

template <typename Payload>
std::optional<Payload> payload_of(std::span<const std::uint8_t> datagram) noexcept {
  Payload payload;
  if (datagram.size() != sizeof(wire::Header) + sizeof(payload)) return std::nullopt;
  std::memcpy(&payload, datagram.data() + sizeof(wire::Header), sizeof(payload));
  return payload;
}

wire::Header header_below(const wire::Header& from_root, const Job& job) noexcept {
  wire::Header header = reply_header(from_root, static_cast<MessageType>(std::uint8_t{from_root.message_type}));
  header.code_bits = static_cast<std::uint8_t>(job.config().table.bits());
  header.num_workers = job.config().num_workers;
  header.epoch = job.epoch();
  return header;
}

bool is_sound_result(const wire::Header& header, std::size_t payload_bytes, bool takes_norms,
                     const LeafConfig& leaf) noexcept {
  const bool norms = header.message_type == static_cast<std::uint8_t>(MessageType::kMaxNorm);
  const unsigned bits = norms ? 32U : unsigned{header.value_bits};
  return norms == takes_norms && payload_bytes * 8 == std::size_t{header.payload_count} * bits &&
         header.contributions == leaf.racks &&
         (header.flags & ~unsigned{wire::kFlagCongested | wire::kFlagLast | wire::kFlagChecksum}) == 0;
}

/// A worker whose packets the root refused retries with smaller packets as the only difference; its rack then learns
/// the size.
bool comes_with_smaller_packets(const Hello& hello, const RootLink& link) noexcept {
  JobConfig config = hello.config;
  config.codes_per_packet = link.config().codes_per_packet;
  return !link.joined() && hello.config.codes_per_packet < config.codes_per_packet &&
         !difference(config, link.config());
}

}  // namespace

RootLink* Leaf::open_link(const Packet& packet, const Hello& hello, TimePoint now) noexcept {
  RootLink* link = create(hello, packet.from, now);
  if (link == nullptr) outbox_.send_error(packet, {ErrorReason::kTooManyJobs});
  return link;
}

std::optional<std::uint32_t> Leaf::admit(const Packet& packet, const Hello& hello, TimePoint now) noexcept {
  RootLink* link = find(hello.job_id);
  if (link == nullptr) {
    link = open_link(packet, hello, now);
  } else if (link->run() != hello.run && !link->may_give_way(now)) {
    outbox_.send_error(packet, {ErrorReason::kOtherTraining});
    return std::nullopt;
  } else if (const auto field = difference(hello.config, link->config())) {
    if (packet.job != nullptr || !comes_with_smaller_packets(hello, *link)) {
      outbox_.send_error(packet, {.reason = ErrorReason::kConfigMismatch,
                                  .field = *field,
                                  .job_value = value_of(*field, link->config()).value_or(0)});
      return std::nullopt;
    }
    forget(*link);
    link = open_link(packet, hello, now);
  }
  if (link == nullptr) return std::nullopt;
  if (link->run() != hello.run) renew(*link, hello.run);
  link->want(now);
  if (link->joined()) return link->slots();
  ask(*link, now);
  if (const auto refusal = link->why_waiting(now)) {
    outbox_.send_error(packet, *refusal);
  } else {
    packet.counters.count(Drop::kLater);
  }
  return std::nullopt;
}

void Leaf::limit(Message<wire::WelcomePayload>& welcome, const Job& job, io::Endpoint to) const noexcept {
  // A leaf does not know which of all racks' packets came last.
  welcome.header.flags = static_cast<std::uint8_t>(welcome.header.flags & ~unsigned{wire::kFlagLast});
  // A packet of codes becomes a packet of wider sums on the way to the root.
  const std::size_t above = find(job.id())->window_bytes();
  const std::size_t share =
      std::max(above * job.config().table.bits() / LeafConfig::kSumBits, outbox_.io.max_datagram_bytes(to));
  if (share < welcome.payload.window_bytes) welcome.payload.window_bytes = static_cast<std::uint32_t>(share);
}

bool Leaf::takes(const Packet& packet) const noexcept {
  switch (packet.type()) {
    case MessageType::kCodes:
    case MessageType::kNorm:
    case MessageType::kGoodbye:
    case MessageType::kAlive:
      return false;  // the root is no worker, so the shard rejects these
    case MessageType::kHello:
      return packet.from == root_;
    default:
      return true;
  }
}

void Leaf::handle(const Packet& packet, TimePoint now) noexcept {
  if (packet.from != root_ || packet.type() == MessageType::kHello) {
    return packet.counters.count(Drop::kSender);
  }
  RootLink* link = find(packet.header.job_id);
  if (link == nullptr || !link->is_addressed(packet.header)) return packet.counters.count(Drop::kHeader);
  switch (packet.type()) {
    case MessageType::kWelcome:
      return take_welcome(packet, *link, now);
    case MessageType::kChallenge: {
      const auto payload = payload_of<wire::ChallengePayload>(packet.datagram);
      if (!payload || !link->awaits_challenge(packet.header)) return packet.counters.count(Drop::kHeader);
      return answer_challenge(*link, packet.header, *payload);
    }
    case MessageType::kError:
      return take_error(packet, *link, now);
    case MessageType::kProbe:
      if (!link->joined()) return packet.counters.count(Drop::kHeader);  // in any epoch, as workers do
      return send(link->notice_header(MessageType::kAlive));
    case MessageType::kAggregate:
    case MessageType::kMaxNorm:
    case MessageType::kStraggler:
      return take_answer(packet, *link);
    default:
      return packet.counters.count(Drop::kType);
  }
}

void Leaf::take_welcome(const Packet& packet, RootLink& link, TimePoint now) noexcept {
  const auto payload = payload_of<wire::WelcomePayload>(packet.datagram);
  if (!payload || !link.answers_hello(packet.header)) return packet.counters.count(Drop::kHeader);
  link.heard_of();
  const std::uint16_t shards = payload->shards;
  if (shards != jobs_.limits().share.shards) {
    if (link.take_refusal({ErrorReason::kBadConfig}, now)) {
      jobs_.events().push({.job = link.job_id(),
                           .change = JobChange::kOtherShards,
                           .workers = link.config().num_workers,
                           .shards = shards});
    }
    return;
  }
  if (!link.take_welcome(packet.header, *payload, now)) return packet.counters.count(Drop::kHeader);
  // The root may return with other slots; the next HELLO of workers restarts the job.
  if (packet.job != nullptr && packet.job->slots() != link.slots()) {
    outbox_.flush();
    jobs_.remove(link.job_id(), JobChange::kRootLost);
  }
}

void Leaf::take_error(const Packet& packet, RootLink& link, TimePoint now) noexcept {
  const wire::Header& header = packet.header;
  const auto error = payload_of<wire::ErrorPayload>(packet.datagram);
  if (!error) return packet.counters.count(Drop::kLength);
  const auto reason = static_cast<ErrorReason>(std::uint16_t{error->reason});
  if (error->reason >= wire::kErrorReasonNames.size()) return packet.counters.count(Drop::kHeader);
  if (header.epoch == 0 && link.answers_hello(header)) {
    const auto field = static_cast<wire::ConfigField>(std::uint16_t{error->field});
    return take_refusal({.reason = reason, .field = field, .job_value = error->job_value}, link, now);
  }
  if (!link.joined() || header.epoch != link.epoch()) return packet.counters.count(Drop::kHeader);
  switch (reason) {
    case ErrorReason::kUnknownJob:
    case ErrorReason::kStaleEpoch:
      return leave_root_job(link, reason);
    case ErrorReason::kNewEpoch:  // workers repeat the refused packet, and it goes up again
      if (!link.take_new_epoch(error->job_value)) packet.counters.count(Drop::kHeader);
      return;
    case ErrorReason::kIncomplete:
    case ErrorReason::kOrderMismatch:
      return take_answer(packet, link);
    default:
      return packet.counters.count(Drop::kHeader);
  }
}

void Leaf::take_refusal(const Refusal& refusal, RootLink& link, TimePoint now) noexcept {
  link.heard_of();
  if (!link.take_refusal(refusal, now)) return;
  jobs_.events().push({.job = link.job_id(),
                       .change = JobChange::kRefused,
                       .workers = link.config().num_workers,
                       .reason = refusal.reason,
                       .field = refusal.field});
}

void Leaf::leave_root_job(RootLink& link, ErrorReason why) noexcept {
  Job* job = jobs_.find(link.job_id());
  outbox_.flush();  // queued results point into the job's memory
  if (why == ErrorReason::kStaleEpoch && job != nullptr) {
    // Another rack has new processes, which share no rounds with these workers.
    job->start_over();
    return link.start_over(link.run());
  }
  if (job != nullptr) jobs_.remove(link.job_id(), JobChange::kRootLost);
  forget(link);
}

void Leaf::take_answer(const Packet& packet, RootLink& link) noexcept {
  const wire::Header& header = packet.header;
  const ShardShare share = jobs_.limits().share;
  const std::uint32_t slot = header.slot;
  if (packet.job == nullptr || !link.joined() || header.epoch != link.epoch()) {
    return packet.counters.count(Drop::kHeader);
  }
  if (slot >= link.slots() || !share.owns(slot)) return packet.counters.count(Drop::kSlot);
  const std::size_t payload_bytes = packet.datagram.size() - sizeof(header);
  const auto type = static_cast<MessageType>(std::uint8_t{header.message_type});
  if (type == MessageType::kStraggler) {
    if (payload_bytes != 0) return packet.counters.count(Drop::kLength);
  } else if (type != MessageType::kError &&
             !is_sound_result(header, payload_bytes, slot < packet.job->norm_slots(), config_)) {
    return packet.counters.count(Drop::kLength);
  }
  link.heard_of();
  // A round that waits for other racks is not final.
  const bool waits = type == MessageType::kError && payload_of<wire::ErrorPayload>(packet.datagram)->reason ==
                                                        static_cast<std::uint16_t>(ErrorReason::kIncomplete);
  pass_on(packet, *packet.job, packet.job->awaited().take_waiting(share.local(slot), header.round, !waits));
}

void Leaf::send_up(const Packet& packet, const SlotReply& reply, std::uint32_t local_slot, TimePoint now) noexcept {
  RootLink* link = find(packet.header.job_id);
  if (link == nullptr || !link->joined()) return;
  const bool again = reply.outcome == SlotOutcome::kReplay;
  if (again && link->is_root_silent(now)) {
    outbox_.send_error(packet, {.reason = ErrorReason::kRacksIncomplete, .job_value = config_.racks});
  }
  AwaitedRounds& awaited = packet.job->awaited();
  const std::uint32_t round = packet.header.round;
  wire::Header header = packet.header;
  header.payload_count = reply.count;
  packet.job->mark_queued(local_slot, round, outbox_.flush_number());
  if (again) {
    awaited.asked(local_slot, round, packet.header.worker_id);
    send(link->repeated_sum_header(header, now), reply.result);
  } else {
    awaited.sent(local_slot, round);
    send(link->partial_sum_header(header, now), reply.result);
  }
  packet.counters.sent_up.add();
}

void Leaf::pass_on(const Packet& packet, Job& job, std::uint64_t workers) noexcept {
  if (workers == 0) return packet.counters.duplicates.add();
  if (packet.header.message_type == static_cast<std::uint8_t>(MessageType::kError)) {
    return pass_on_error(packet, job, workers);
  }
  wire::Header header = header_below(packet.header, job);
  const bool is_result = header.message_type != static_cast<std::uint8_t>(MessageType::kStraggler);
  header.contributions = is_result ? job.config().num_workers : std::uint8_t{0};  // all racks: all workers
  const bool congested_above = packet.congested || (packet.header.flags & wire::kFlagCongested) != 0;
  const unsigned flags = header.flags | (is_result && congested_above ? wire::kFlagCongested : 0U);
  (is_result ? packet.counters.passed_on : packet.counters.stale).add();
  job.roster().for_each([&](std::uint8_t worker, io::Endpoint to) {
    if ((workers >> worker & 1) == 0) return;
    header.worker_id = worker;
    header.flags = static_cast<std::uint8_t>(flags | (is_result ? job.take_congestion_flag(worker) : 0U));
    outbox_.io.send(to, bytes_of(header), packet.datagram.subspan(sizeof(header)));
  });
}

void Leaf::pass_on_error(const Packet& packet, const Job& job, std::uint64_t workers) noexcept {
  Message<wire::ErrorPayload> message{.header = header_below(packet.header, job), .payload = {}};
  message.payload = *payload_of<wire::ErrorPayload>(packet.datagram);
  if (message.payload.reason == static_cast<std::uint16_t>(ErrorReason::kIncomplete)) {
    message.payload.reason = static_cast<std::uint16_t>(ErrorReason::kRacksIncomplete);
    message.payload.field = std::uint16_t{0};
    message.payload.job_value = std::uint32_t{config_.racks};
  }
  packet.counters.count(static_cast<ErrorReason>(std::uint16_t{message.payload.reason}));
  job.roster().for_each([&](std::uint8_t worker, io::Endpoint to) {
    if ((workers >> worker & 1) == 0) return;
    message.header.worker_id = worker;
    outbox_.io.send(to, bytes_of(message), {});
  });
}

}  // namespace thc::ps
