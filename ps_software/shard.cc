#include "shard.h"

#include <algorithm>
#include <cstring>
#include <variant>

#include "packet_check.h"

namespace thc::ps {
namespace {

using wire::ErrorReason;
using wire::MessageType;

// A server that comes back is asked by every packet in flight; one that is attacked must not become a reflector.
constexpr std::uint32_t kStrangerBudget = 1000;
constexpr std::uint32_t kHelloBudget = 1000;
constexpr std::chrono::milliseconds kBudgetRefill{100};

// A worker that lacks a result asks again every 200 ms at least: time for two attempts to get lost, and for five when
// it is known that someone could be waiting.
constexpr std::chrono::milliseconds kQuietTime{500};
constexpr std::chrono::milliseconds kQuietTimeIncomplete{1000};

template <typename T>
std::span<const std::uint8_t> bytes_of(const T& value) noexcept {
  return {reinterpret_cast<const std::uint8_t*>(&value), sizeof(value)};
}

/// Header and short payload, sent as one copied piece.
template <typename Payload>
struct Message {
  wire::Header header;
  Payload payload;
};

wire::Header reply_header(const wire::Header& request, MessageType type) noexcept {
  wire::Header header = request;
  header.message_type = static_cast<std::uint8_t>(type);
  header.flags = std::uint8_t{0};
  header.contributions = std::uint8_t{0};
  header.switch_pass = std::uint8_t{0};
  header.switch_step = std::uint8_t{0};
  header.switch_state = std::uint16_t{0};
  return header;
}

wire::Header result_header(const wire::Header& request, const SlotReply& reply) noexcept {
  const bool norms = request.message_type == static_cast<std::uint8_t>(MessageType::kNorm);
  wire::Header header = reply_header(request, norms ? MessageType::kMaxNorm : MessageType::kAggregate);
  header.flags = reply.contributions < request.num_workers ? wire::kFlagPartial : std::uint8_t{0};
  header.contributions = reply.contributions;
  return header;
}

}  // namespace

Shard::Shard(const JobLimits& limits, io::PacketIo& packet_io)
    : io_(packet_io), jobs_(limits), stranger_budget_(kStrangerBudget), hello_budget_(kHelloBudget) {}

std::size_t Shard::poll(TimePoint now) noexcept {
  const std::size_t received = io_.receive(burst_);
  const auto packets = std::span(burst_).first(received);
  for (const io::RxPacket& packet : packets) prefetch(packet);
  if (now >= next_refill_) {
    stranger_budget_ = kStrangerBudget;
    hello_budget_ = kHelloBudget;
    next_refill_ = now + kBudgetRefill;
  }
  for (const io::RxPacket& packet : packets) handle(packet, now);
  if (received > 0) {
    flush();
    publish_io_totals();
  }
  return received;
}

void Shard::run_timers(TimePoint now) noexcept {
  if (jobs_.has_idle(now)) {
    flush();
    jobs_.remove_idle(now);
  }
  jobs_.publish();
  publish_io_totals();
}

bool Shard::is_quiet(TimePoint now) const noexcept {
  return now - last_active_ > (jobs_.slots_in_use() == 0 ? kQuietTime : kQuietTimeIncomplete);
}

void Shard::prefetch(const io::RxPacket& packet) const noexcept {
  if (packet.size_bytes < sizeof(wire::Header)) return;
  wire::Header header;
  std::memcpy(&header, packet.data, sizeof(header));
  Job* job = jobs_.find(header.job_id);
  if (job != nullptr) job->pool().prefetch(jobs_.limits().share.local(header.slot), header.round);
}

void Shard::handle(const io::RxPacket& received, TimePoint now) noexcept {
  wire::Header header;
  if (received.size_bytes < sizeof(header) || received.data[0] != wire::kVersion) {
    strays_.packets.add();
    strays_.bytes.add(received.size_bytes);
    return strays_.count(Drop::kVersion);
  }
  std::memcpy(&header, received.data, sizeof(header));
  Job* job = jobs_.find(header.job_id);
  const Packet packet{.header = header,
                      .datagram = {received.data, received.size_bytes},
                      .from = received.from,
                      .job = job,
                      .counters = job != nullptr ? job->counters().packets : strays_};
  packet.counters.packets.add();
  packet.counters.bytes.add(received.size_bytes);
  switch (static_cast<MessageType>(std::uint8_t{header.message_type})) {
    case MessageType::kCodes:
    case MessageType::kNorm:
      return handle_contribution(packet, now);
    case MessageType::kHello:
      return handle_hello(packet, now);
    case MessageType::kGoodbye:
      return handle_goodbye(packet);
    default:
      return packet.counters.count(Drop::kType);
  }
}

void Shard::handle_contribution(const Packet& packet, TimePoint now) noexcept {
  if (const auto drop =
          check_contribution_length(packet.header, packet.datagram.size(), jobs_.limits().codes_multiple)) {
    return packet.counters.count(*drop);
  }
  if (!check_epoch(packet)) return;
  if (const auto drop = check_contribution(packet.header, packet.from, *packet.job, jobs_.limits().share)) {
    return packet.counters.count(*drop);
  }
  packet.job->heard_of(packet.header.worker_id, now);
  last_active_ = now;
  contribute(packet);
}

bool Shard::check_epoch(const Packet& packet) noexcept {
  if (packet.job != nullptr && packet.header.epoch == packet.job->epoch()) return true;
  // An epoch that this job never had here is from before a restart of the server or an expiry: not the job's doing.
  const bool superseded = packet.job != nullptr && packet.job->was_superseded(packet.header.epoch);
  refuse_stranger(packet, {superseded ? ErrorReason::kStaleEpoch : ErrorReason::kUnknownJob});
  return false;
}

void Shard::contribute(const Packet& packet) noexcept {
  const wire::Header& header = packet.header;
  Job& job = *packet.job;
  const std::uint32_t slot = jobs_.limits().share.local(header.slot);
  if (job.would_overwrite_queued(slot, header.round, flush_number_)) flush();
  const SlotReply reply = job.pool().contribute({.slot = slot,
                                                 .round = header.round,
                                                 .worker = header.worker_id,
                                                 .retransmit = (header.flags & wire::kFlagRetransmit) != 0,
                                                 .partition = header.partition,
                                                 .chunk = header.chunk,
                                                 .count = header.payload_count,
                                                 .payload = packet.datagram.data() + sizeof(header)});
  switch (reply.outcome) {
    case SlotOutcome::kAbsorbed:
      return;
    case SlotOutcome::kCompleted:
      packet.counters.completed.add();
      if (reply.contributions < header.num_workers) packet.counters.partial.add();
      return send_to_all(packet, reply, slot);
    case SlotOutcome::kReplay:
      packet.counters.replays.add();
      return send_result(packet, reply, slot);
    case SlotOutcome::kIncomplete:
      packet.counters.duplicates.add();
      return send_error(packet, {.reason = ErrorReason::kIncomplete, .worker_bitmap = reply.bitmap});
    case SlotOutcome::kDuplicate:
      return packet.counters.duplicates.add();
    case SlotOutcome::kStraggler:
      packet.counters.stale.add();
      return send_straggler(packet);
    case SlotOutcome::kOrderMismatch:
      return send_error(packet, {ErrorReason::kOrderMismatch});
    case SlotOutcome::kInvalid:
      return packet.counters.count(Drop::kSlot);
  }
}

void Shard::handle_goodbye(const Packet& packet) noexcept {
  if (packet.job == nullptr) return packet.counters.count(Drop::kHeader);
  if (const auto drop = check_goodbye(packet.header, packet.datagram.size(), packet.from, *packet.job)) {
    return packet.counters.count(*drop);
  }
  if (!packet.job->leave(packet.header.worker_id)) return;
  flush();  // queued results are in the job's memory
  jobs_.remove(packet.header.job_id, JobChange::kLeft);
}

void Shard::handle_hello(const Packet& packet, TimePoint now) noexcept {
  if (const auto drop = check_hello_header(packet.header, jobs_.limits().share)) {
    return packet.counters.count(*drop);
  }
  if (hello_budget_ == 0) return packet.counters.count(Drop::kRateLimited);
  --hello_budget_;
  const ParsedHello parsed = parse_hello(packet.datagram, io_.max_datagram_bytes(packet.from));
  if (const auto* refusal = std::get_if<Refusal>(&parsed)) return send_error(packet, *refusal);
  const auto* hello = std::get_if<Hello>(&parsed);
  if (hello == nullptr) return packet.counters.count(Drop::kLength);
  if (packet.job != nullptr) {
    if (const auto field = difference(hello->config, packet.job->config())) {
      return send_error(packet, {.reason = ErrorReason::kConfigMismatch,
                                 .field = *field,
                                 .job_value = value_of(*field, packet.job->config()).value_or(0)});
    }
  }
  if (draining_ && (packet.job == nullptr || !packet.job->is_registered(hello->worker_id, packet.from))) {
    return send_error(packet, {ErrorReason::kDraining});
  }
  Job* job = packet.job != nullptr ? packet.job : jobs_.create(*hello, now);
  if (job == nullptr) return send_error(packet, {ErrorReason::kTooManyJobs});
  join(packet, *hello, *job, now);
}

void Shard::join(const Packet& packet, const Hello& hello, Job& job, TimePoint now) noexcept {
  flush();  // starting over clears results that may be queued
  if (job.join(hello, packet.from, jobs_.new_epoch(), now) == Job::Joined::kDuplicate) {
    return send_error(packet,
                      {.reason = ErrorReason::kDuplicateWorker, .worker_bitmap = std::uint64_t{1} << hello.worker_id});
  }
  send_welcome(packet, job);
}

std::uint32_t Shard::window_bytes(const Job& job, io::Endpoint to) const noexcept {
  // Half of the receive buffers (slots are spread evenly over shards), shared by the workers of the jobs of this
  // moment.
  const std::size_t workers = std::size_t{job.config().num_workers} * jobs_.size();
  const std::size_t share = io_.receive_buffer_bytes() * jobs_.limits().share.shards / 2 / workers;
  return static_cast<std::uint32_t>(std::clamp(share, io_.max_datagram_bytes(to), std::size_t{UINT32_MAX}));
}

void Shard::send_welcome(const Packet& packet, const Job& job) noexcept {
  Message<wire::WelcomePayload> message{.header = reply_header(packet.header, MessageType::kWelcome), .payload = {}};
  message.header.epoch = job.epoch();
  message.payload.slots = job.slots();
  message.payload.norm_slots = job.norm_slots();
  message.payload.window_bytes = window_bytes(job, packet.from);
  message.payload.shards = jobs_.limits().share.shards;
  message.payload.codes_multiple = jobs_.limits().codes_multiple;
  io_.send(packet.from, bytes_of(message), {});
}

void Shard::send_to_all(const Packet& packet, const SlotReply& reply, std::uint32_t local_slot) noexcept {
  wire::Header header = result_header(packet.header, reply);
  packet.job->mark_queued(local_slot, header.round, flush_number_);
  packet.job->for_each_worker([&](std::uint8_t worker, io::Endpoint to) {
    header.worker_id = worker;
    io_.send(to, bytes_of(header), reply.result);
  });
}

void Shard::send_result(const Packet& packet, const SlotReply& reply, std::uint32_t local_slot) noexcept {
  const wire::Header header = result_header(packet.header, reply);
  packet.job->mark_queued(local_slot, header.round, flush_number_);
  io_.send(packet.from, bytes_of(header), reply.result);
}

void Shard::send_straggler(const Packet& packet) noexcept {
  wire::Header header = reply_header(packet.header, MessageType::kStraggler);
  header.payload_count = std::uint16_t{0};
  io_.send(packet.from, bytes_of(header), {});
}

void Shard::send_error(const Packet& packet, const Refusal& refusal) noexcept {
  Message<wire::ErrorPayload> message{.header = reply_header(packet.header, MessageType::kError), .payload = {}};
  message.header.payload_count = std::uint16_t{0};
  message.payload.worker_bitmap = refusal.worker_bitmap;
  message.payload.reason = static_cast<std::uint16_t>(refusal.reason);
  message.payload.field = static_cast<std::uint16_t>(refusal.field);
  message.payload.job_value = refusal.job_value;
  io_.send(packet.from, bytes_of(message), {});
  packet.counters.count(refusal.reason);
}

void Shard::refuse_stranger(const Packet& packet, const Refusal& refusal) noexcept {
  if (stranger_budget_ == 0) return packet.counters.count(Drop::kRateLimited);
  --stranger_budget_;
  send_error(packet, refusal);
}

void Shard::flush() noexcept {
  io_.flush();
  ++flush_number_;
}

void Shard::publish_io_totals() noexcept {
  const io::IoCounters& counters = io_.counters();
  io_totals_.rx_packets.set(counters.rx_packets);
  io_totals_.rx_bytes.set(counters.rx_bytes);
  io_totals_.rx_malformed.set(counters.rx_malformed);
  io_totals_.rx_unauthenticated.set(counters.rx_unauthenticated);
  io_totals_.tx_packets.set(counters.tx_packets);
  io_totals_.tx_bytes.set(counters.tx_bytes);
  io_totals_.tx_no_buffer.set(counters.tx_no_buffer);
  io_totals_.tx_errors.set(counters.tx_errors);
  io_totals_.tx_no_neighbour.set(counters.tx_no_neighbour);
}

}  // namespace thc::ps
