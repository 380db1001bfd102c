#include "shard.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>

#include "packet_check.h"

namespace thc::ps {
namespace {

using wire::ErrorReason;
using wire::MessageType;

// Every packet in flight asks a restarted server, and an attacked server must not become a reflector.
constexpr std::uint32_t kStrangerBudget = 1000;
constexpr std::size_t kErrorBytes = sizeof(Message<wire::ErrorPayload>);
constexpr std::uint32_t kHelloBudget = 1000;
constexpr std::uint32_t kChallengeBudget = 1000;
constexpr std::chrono::milliseconds kBudgetRefill{100};

// A worker without a result asks again within 200 ms: time to lose two requests, or five if a round is incomplete.
constexpr std::chrono::milliseconds kQuietTime{500};
constexpr std::chrono::milliseconds kQuietTimeIncomplete{1000};
// Workers ask every second whether a server lives, and some wait half a second for another server's answer.
constexpr std::chrono::milliseconds kNoticeTime{1700};

/// Some worker other than `seen` is missing, perhaps one that was rejected.
Refusal incomplete(const Job& job, std::uint64_t seen) noexcept {
  Refusal notice{.reason = ErrorReason::kIncomplete, .worker_bitmap = seen};
  if (const auto& outsider = job.outsider(); outsider && (seen >> outsider->worker & 1) == 0) {
    notice.field = outsider->field;
    notice.job_value = outsider->value;
  }
  return notice;
}

}  // namespace

Shard::Shard(const JobLimits& limits, io::PacketIo& packet_io)
    : outbox_(packet_io),
      io_(packet_io),
      jobs_(limits),
      leaf_(limits.leaf ? std::make_unique<Leaf>(limits, jobs_, outbox_) : nullptr) {
  refill({});
}

std::size_t Shard::poll(TimePoint now) noexcept {
  const std::size_t received = io_.receive(burst_);
  const auto packets = std::span(burst_).first(received);
  for (const io::RxPacket& packet : packets) prefetch(packet);
  if (now >= next_refill_) refill(now);
  for (const io::RxPacket& packet : packets) handle(packet, now);
  const bool is_due = pacer_.next() <= now;
  if (is_due) send_waiting(now);
  if (received > 0 || is_due) {
    outbox_.flush();
    publish_io_totals();
  }
  return received;
}

void Shard::refill(TimePoint now) noexcept {
  stranger_budget_ = kStrangerBudget;
  hello_budget_ = kHelloBudget;
  challenge_budget_ = kChallengeBudget;
  next_refill_ = now + kBudgetRefill;
}

void Shard::run_timers(TimePoint now) noexcept {
  jobs_.for_each([&](Job& job) { send_probes(job, now); });
  outbox_.flush();  // queued results point into the jobs' memory
  jobs_.remove_idle(now, [&](std::uint16_t job_id) { ended(job_id); });
  if (leaf_) leaf_->run_timers(now);
  outbox_.flush();
  jobs_.publish();
  publish_io_totals();
}

void Shard::drain(TimePoint now) noexcept {
  draining_ = true;
  told_at_ = now + kNoticeTime;
}

bool Shard::is_quiet(TimePoint now) const noexcept {
  if (now < told_at_ && jobs_.size() != 0) return false;
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
                      .congested = received.congested,
                      .job = job,
                      .counters = job != nullptr ? job->counters().packets : strays_};
  packet.counters.packets.add();
  packet.counters.bytes.add(received.size_bytes);
  if (leaf_ && leaf_->takes(packet)) return leaf_->handle(packet, now);
  switch (packet.type()) {
    case MessageType::kCodes:
    case MessageType::kNorm:
      return handle_contribution(packet, now);
    case MessageType::kHello:
      return handle_hello(packet, now);
    case MessageType::kGoodbye:
      return handle_goodbye(packet);
    case MessageType::kAlive:
      return handle_alive(packet, now);
    default:
      return packet.counters.count(Drop::kType);
  }
}

void Shard::handle_contribution(const Packet& packet, TimePoint now) noexcept {
  if (const auto drop =
          check_contribution_length(packet.header, packet.datagram.size(), jobs_.limits().codes_multiple)) {
    return packet.counters.count(*drop);
  }
  if (packet.job == nullptr) return refuse_stranger(packet, {ErrorReason::kUnknownJob});
  if (!check_sender(packet, *packet.job)) return;
  if (const auto drop = check_contribution(packet.header, packet.datagram.subspan(sizeof(wire::Header)), *packet.job,
                                           jobs_.limits().share)) {
    return packet.counters.count(*drop);
  }
  packet.job->heard_of(packet.header.worker_id, now);
  if (packet.congested) packet.job->roster().note_congestion(packet.header.worker_id);
  last_active_ = now;
  contribute(packet, now);
}

bool Shard::check_sender(const Packet& packet, const Job& job) noexcept {
  const wire::Header& header = packet.header;
  // The checks below must reveal an epoch only to workers of this or an earlier incarnation.
  if (header.worker_id >= job.config().num_workers) {
    packet.counters.count(Drop::kHeader);
    return false;
  }
  const bool registered = is_from_its_worker(header, packet.from, job);
  if (registered && header.epoch == job.epoch()) return true;
  if (registered && job.has_renewed(header.epoch)) {
    outbox_.send_error(packet, {.reason = ErrorReason::kNewEpoch, .job_value = job.epoch()});
  } else if (job.roster().was_superseded(header.epoch, header.worker_id, packet.from)) {
    refuse_stranger(packet, {ErrorReason::kStaleEpoch});
  } else if (registered || !job.roster().has(header.worker_id)) {
    // The worker joined before a restart or an expiry, and its peers returned first: its place is free.
    refuse_stranger(packet, {ErrorReason::kUnknownJob});
  } else {
    packet.counters.count(Drop::kSender);
  }
  return false;
}

void Shard::contribute(const Packet& packet, TimePoint now) noexcept {
  const wire::Header& header = packet.header;
  Job& job = *packet.job;
  const std::uint32_t slot = jobs_.limits().share.local(header.slot);
  const bool abstains = (header.flags & wire::kFlagAbstain) != 0;
  if (abstains) packet.counters.abstained.add();
  if (!abstains && job.ends_epoch(slot, header.round, jobs_.limits().rounds_per_epoch)) {
    return renew_epoch(packet, job);
  }
  if (!pacer_.empty() && job.pool().starts_over(slot, header.round)) pacer_.forget(job, slot, header.round);
  if (job.would_overwrite_queued(slot, header.round, outbox_.flush_number())) outbox_.flush();
  const SlotReply reply =
      job.pool().contribute({.slot = slot,
                             .round = header.round,
                             .worker = static_cast<std::uint8_t>(header.worker_id - job.first_worker()),
                             .retransmit = (header.flags & wire::kFlagRetransmit) != 0,
                             .abstain = abstains,
                             .partition = header.partition,
                             .chunk = header.chunk,
                             .count = header.payload_count,
                             .payload = packet.datagram.data() + sizeof(header)});
  const bool completes = reply.outcome == SlotOutcome::kCompleted;
  if (completes) packet.counters.completed.add();
  if (leaf_ && (completes || reply.outcome == SlotOutcome::kReplay)) return leaf_->send_up(packet, reply, slot, now);
  switch (reply.outcome) {
    case SlotOutcome::kAbsorbed:
      return;
    case SlotOutcome::kCompleted:
      if (reply.contributions < header.num_workers) packet.counters.partial.add();
      return send_to_all(packet, reply, slot, now);
    case SlotOutcome::kReplay:
      packet.counters.replays.add();
      return send_result(packet, reply, slot, now);
    case SlotOutcome::kIncomplete:
      packet.counters.duplicates.add();
      return outbox_.send_error(packet, incomplete(job, reply.bitmap << job.first_worker() | job.workers_elsewhere()));
    case SlotOutcome::kDuplicate:
      return packet.counters.duplicates.add();
    case SlotOutcome::kStraggler:
      packet.counters.stale.add();
      return send_straggler(packet);
    case SlotOutcome::kOrderMismatch:
      return outbox_.send_error(packet, {ErrorReason::kOrderMismatch});
    case SlotOutcome::kInvalid:
      return packet.counters.count(Drop::kSlot);
  }
}

void Shard::send_to_all(const Packet& packet, const SlotReply& reply, std::uint32_t local_slot,
                        TimePoint now) noexcept {
  wire::Header header = result_header(packet.header, reply);
  const std::uint8_t flags = header.flags;
  packet.job->mark_queued(local_slot, header.round, outbox_.flush_number());
  const Roster& roster = packet.job->roster();
  const bool may_be_gone = packet.job->has_quorum();  // without a quorum, all have contributed just now
  if (pacer_.is_paced() && !pacer_.full() && !may_be_gone) {
    std::uint64_t workers = 0;
    roster.for_each([&](std::uint8_t worker, io::Endpoint) { workers |= std::uint64_t{1} << worker; });
    header.worker_id = packet.header.worker_id;  // the sender of the last packet
    return pacer_.push({packet.job, packet.job->id(), packet.job->epoch(), local_slot, workers, header, reply.result});
  }
  roster.for_each([&](std::uint8_t worker, io::Endpoint to) {
    const bool waits = (reply.bitmap >> worker & 1) != 0;  // loss-tolerant workers do not repeat codes
    if (may_be_gone && !waits && roster.is_silent(worker, now)) return packet.counters.withheld.add();
    const bool last = worker == packet.header.worker_id;
    header.flags = static_cast<std::uint8_t>(flags | (last ? wire::kFlagLast : 0U));
    send_result_to(worker, to, header, reply.result, *packet.job, now);
  });
}

void Shard::send_result_to(std::uint8_t worker, io::Endpoint to, wire::Header header,
                           std::span<const std::uint8_t> result, Job& job, TimePoint now) noexcept {
  header.worker_id = worker;
  header.flags = static_cast<std::uint8_t>(header.flags | job.take_congestion_flag(worker));
  io_.send(to, bytes_of(header), result);
  pacer_.sent(now);
}

void Shard::send_waiting(TimePoint now) noexcept {
  while (ResultPacer::Waiting* waiting = pacer_.due(now)) {
    Job* job = jobs_.find(waiting->job_id);
    const auto worker = static_cast<std::uint8_t>(std::countr_zero(waiting->workers));
    if (job == waiting->job && job->epoch() == waiting->epoch && job->roster().has(worker)) {
      wire::Header header = waiting->header;
      if (header.worker_id == worker) header.flags = static_cast<std::uint8_t>(header.flags | wire::kFlagLast);
      job->mark_queued(waiting->local_slot, header.round, outbox_.flush_number());
      send_result_to(worker, job->roster().address(worker), header, waiting->result, *job, now);
    }
    pacer_.served(worker);
  }
}

void Shard::renew_epoch(const Packet& packet, Job& job) noexcept {
  job.renew_epoch();
  // To all, including silent workers: later their epoch would be unknown.
  wire::Header header = packet.header;
  job.roster().for_each([&](std::uint8_t worker, io::Endpoint to) {
    header.worker_id = worker;
    io_.send(to, bytes_of(make_error(header, {.reason = ErrorReason::kNewEpoch, .job_value = job.epoch()})), {});
    packet.counters.count(ErrorReason::kNewEpoch);
  });
}

void Shard::send_result(const Packet& packet, const SlotReply& reply, std::uint32_t local_slot,
                        TimePoint now) noexcept {
  const wire::Header header = result_header(packet.header, reply);
  const std::uint8_t worker = header.worker_id;
  if (!pacer_.empty() && pacer_.has(*packet.job, local_slot, header.round, worker)) return;
  pacer_.asked_again();
  packet.job->mark_queued(local_slot, header.round, outbox_.flush_number());
  send_result_to(worker, packet.from, header, reply.result, *packet.job, now);
}

void Shard::send_straggler(const Packet& packet) noexcept {
  const wire::Header header = bare_header(packet.header, MessageType::kStraggler);
  io_.send(packet.from, bytes_of(header), {});
}

void Shard::refuse_stranger(const Packet& packet, const Refusal& refusal) noexcept {
  // A spoofed address must not receive more bytes than it sent: packets shorter than ERROR must come twice.
  stranger_bytes_ = std::min(stranger_bytes_ + packet.datagram.size(), kStrangerBudget * kErrorBytes);
  if (stranger_budget_ == 0 || stranger_bytes_ < kErrorBytes) return packet.counters.count(Drop::kRateLimited);
  --stranger_budget_;
  stranger_bytes_ -= kErrorBytes;
  outbox_.send_error(packet, refusal);
}

void Shard::publish_io_totals() noexcept {
  const auto values = std::bit_cast<std::array<std::uint64_t, std::tuple_size_v<decltype(io_totals_)>>>(io_.counters());
  for (std::size_t i = 0; i < values.size(); ++i) io_totals_[i].set(values[i]);
}

io::IoCounters Shard::io_totals() const noexcept {
  std::array<std::uint64_t, std::tuple_size_v<decltype(io_totals_)>> values;
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = io_totals_[i].get();
  return std::bit_cast<io::IoCounters>(values);
}

}  // namespace thc::ps
