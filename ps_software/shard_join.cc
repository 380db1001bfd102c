#include <algorithm>
#include <cstring>
#include <variant>

#include "packet_check.h"
#include "shard.h"

namespace thc::ps {

using wire::ErrorReason;
using wire::MessageType;

void Shard::handle_goodbye(const Packet& packet) noexcept {
  if (packet.job == nullptr) return packet.counters.count(Drop::kHeader);
  if (const auto drop = check_notice(packet.header, packet.datagram.size(), packet.from, *packet.job)) {
    return packet.counters.count(*drop);
  }
  if (!packet.job->leave(packet.header.worker_id)) return;
  outbox_.flush();  // queued results point into the job's memory
  jobs_.remove(packet.header.job_id, JobChange::kLeft);
  ended(packet.header.job_id);
}

void Shard::ended(std::uint16_t job_id) noexcept {
  if (leaf_) leaf_->end(job_id);  // a later HELLO must not inherit the place
}

void Shard::handle_alive(const Packet& packet, TimePoint now) noexcept {
  if (packet.job == nullptr) return packet.counters.count(Drop::kHeader);
  if (const auto drop = check_notice(packet.header, packet.datagram.size(), packet.from, *packet.job)) {
    return packet.counters.count(*drop);
  }
  packet.job->heard_of(packet.header.worker_id, now);
}

void Shard::handle_hello(const Packet& packet, TimePoint now) noexcept {
  if (const auto drop = check_hello_header(packet.header, jobs_.limits().share)) {
    return packet.counters.count(*drop);
  }
  if (!has_hello_length(packet.datagram)) return packet.counters.count(Drop::kLength);
  wire::HelloPayload payload;
  std::memcpy(&payload, packet.datagram.data() + sizeof(packet.header), sizeof(payload));
  const bool proven = cookies_.accepts(payload.cookie, packet.header, payload.nonce, packet.from, now);
  std::uint32_t& budget = proven ? hello_budget_ : challenge_budget_;
  if (budget == 0) return packet.counters.count(Drop::kRateLimited);
  --budget;
  // Sent without proof of the address: DRAINING is no longer than a HELLO.
  const bool joins = packet.header.epoch == 0;
  if (!proven && draining_ && joins && is_stranger(packet)) return outbox_.send_error(packet, {ErrorReason::kDraining});
  if (!proven) {
    const std::uint64_t cookie = cookies_.make(packet.header, payload.nonce, packet.from, now);
    io_.send(packet.from, bytes_of(make_challenge(packet.header, cookie)), {});
    return;
  }
  const ParsedHello parsed = parse_hello(packet.datagram, io_.max_datagram_bytes(packet.from));
  if (const auto* refusal = std::get_if<Refusal>(&parsed)) return outbox_.send_error(packet, *refusal);
  const Hello& hello = std::get<Hello>(parsed);
  return joins ? take_hello(packet, hello, now) : take_address(packet, hello, now);
}

void Shard::take_address(const Packet& packet, const Hello& hello, TimePoint now) noexcept {
  Job* job = packet.job;
  const std::uint32_t epoch = packet.header.epoch;
  if (job != nullptr && job->roster().knows(hello) && (epoch == job->epoch() || job->has_renewed(epoch))) {
    const bool moved = !job->roster().is_registered(hello.worker_id, packet.from);
    job->enter(hello, io_.simplify(packet.from), now);
    return send_welcome(packet, *job, moved);
  }
  const bool superseded = job != nullptr && job->roster().was_superseded(epoch);
  outbox_.send_error(packet, {superseded ? ErrorReason::kStaleEpoch : ErrorReason::kUnknownJob});
}

bool Shard::is_stranger(const Packet& packet) const noexcept {
  if (packet.job == nullptr || packet.header.worker_id >= packet.job->config().num_workers) return true;
  return !packet.job->roster().is_registered(packet.header.worker_id, packet.from);
}

void Shard::take_hello(const Packet& packet, const Hello& hello, TimePoint now) noexcept {
  if (leaf_) {
    if (const auto refusal = leaf_->refuse(hello)) return outbox_.send_error(packet, *refusal);
  }
  if (draining_ && is_stranger(packet)) return outbox_.send_error(packet, {ErrorReason::kDraining});
  if (packet.job != nullptr) {
    if (!make_way(packet, hello, *packet.job, now)) return;
    if (const auto field = difference(hello.config, packet.job->config())) {
      if (packet.job->roster().has(hello.worker_id)) clear_place(hello, *packet.job, now);
      if (packet.job->roster().size() == 0 && !leaf_) return take_over(packet, hello, now);
      packet.job->refused({hello.worker_id, *field, value_of(*field, hello.config).value_or(0)});
      return outbox_.send_error(packet, {.reason = ErrorReason::kConfigMismatch,
                                         .field = *field,
                                         .job_value = value_of(*field, packet.job->config()).value_or(0)});
    }
  }
  const auto slots = leaf_ ? leaf_->admit(packet, hello, now) : jobs_.slots_for(hello);
  if (!slots) return;
  if (packet.job != nullptr) return join(packet, hello, *packet.job, now);
  if (!jobs_.may_create(packet.from, now)) return packet.counters.count(Drop::kLater);
  Job* job = jobs_.create(hello, *slots, packet.from, now);
  if (job == nullptr) return outbox_.send_error(packet, {ErrorReason::kTooManyJobs});
  join(packet, hello, *job, now);
}

void Shard::clear_place(const Hello& hello, Job& job, TimePoint now) noexcept {
  const Roster::Verdict verdict = job.roster().judge(hello, now);
  if (verdict == Roster::Verdict::kDuplicate) send_probes(job, now);
  if (verdict == Roster::Verdict::kRestarted) job.leave(hello.worker_id);
}

void Shard::take_over(const Packet& packet, const Hello& hello, TimePoint now) noexcept {
  outbox_.flush();  // queued results point into the job's memory
  jobs_.remove(packet.header.job_id, JobChange::kReplaced);
  take_hello({.header = packet.header,
              .datagram = packet.datagram,
              .from = packet.from,
              .congested = packet.congested,
              .job = nullptr,
              .counters = strays_},
             hello, now);
}

bool Shard::make_way(const Packet& packet, const Hello& hello, Job& job, TimePoint now) noexcept {
  switch (job.roster().judge_training(hello.run, now)) {
    case Roster::Training::kSame:
      return true;
    case Roster::Training::kOther:
      send_probes(job, now);
      outbox_.send_error(packet, {ErrorReason::kOtherTraining});
      return false;
    case Roster::Training::kOver:
      start_over(job, hello.run);
      return true;
  }
  return false;
}

bool Shard::start_over(Job& job, std::uint64_t run) noexcept {
  outbox_.flush();  // starting over clears queued results
  job.start_over();
  if (leaf_) leaf_->renew(job.id(), run);
  return !leaf_;
}

void Shard::join(const Packet& packet, const Hello& hello, Job& job, TimePoint now) noexcept {
  switch (job.roster().judge(hello, now)) {
    case Roster::Verdict::kGone:
      return packet.counters.count(Drop::kSender);
    case Roster::Verdict::kHeld:
      send_probes(job, now);
      return packet.counters.count(Drop::kLater);
    case Roster::Verdict::kDuplicate:
      send_probes(job, now);
      return outbox_.send_error(
          packet, {.reason = ErrorReason::kDuplicateWorker, .worker_bitmap = std::uint64_t{1} << hello.worker_id});
    case Roster::Verdict::kRestarted:
      if (!start_over(job, hello.run)) return packet.counters.count(Drop::kLater);
      break;
    case Roster::Verdict::kNew:
    case Roster::Verdict::kAgain:
      break;
  }
  job.enter(hello, io_.simplify(packet.from), now);
  send_welcome(packet, job);
}

std::uint32_t Shard::window_bytes(const Job& job, io::Endpoint to) const noexcept {
  // Half of the receive buffers (slots are spread evenly over shards), divided among the workers of current jobs.
  const std::size_t workers = std::size_t{job.config().num_workers} * jobs_.size();
  const std::size_t share = io_.receive_buffer_bytes() * jobs_.limits().share.shards / 2 / workers;
  return static_cast<std::uint32_t>(std::clamp(share, io_.max_datagram_bytes(to), std::size_t{UINT32_MAX}));
}

void Shard::send_welcome(const Packet& packet, const Job& job, bool moved) noexcept {
  Message<wire::WelcomePayload> message{.header = reply_header(packet.header, MessageType::kWelcome), .payload = {}};
  message.header.epoch = job.epoch();
  message.header.flags =
      static_cast<std::uint8_t>(message.header.flags | wire::kFlagLast | (job.has_quorum() ? wire::kFlagAbstain : 0U) |
                                (moved ? wire::kFlagRetransmit : 0U));
  message.payload.slots = job.slots();
  message.payload.norm_slots = job.norm_slots();
  message.payload.window_bytes = window_bytes(job, packet.from);
  message.payload.shards = jobs_.limits().share.shards;
  message.payload.codes_multiple = jobs_.limits().codes_multiple;
  if (leaf_) leaf_->limit(message, job, packet.from);
  io_.send(packet.from, bytes_of(message), {});
}

void Shard::send_probes(Job& job, TimePoint now) noexcept {
  wire::Header header{};
  header.version = wire::kVersion;
  header.message_type = static_cast<std::uint8_t>(MessageType::kProbe);
  header.code_bits = static_cast<std::uint8_t>(job.config().table.bits());
  header.value_bits = job.config().value_bits;
  header.num_workers = job.config().num_workers;
  header.job_id = job.id();
  header.epoch = job.epoch();
  header.slot = jobs_.limits().share.shard;
  job.roster().for_each_due_probe(now, [&](std::uint8_t worker, io::Endpoint to) {
    header.worker_id = worker;
    io_.send(to, bytes_of(header), {});
  });
}

}  // namespace thc::ps
