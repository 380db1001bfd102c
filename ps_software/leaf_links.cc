#include <algorithm>
#include <new>

#include "leaf.h"

namespace thc::ps {

using wire::MessageType;

Leaf::Leaf(const JobLimits& limits, JobTable& jobs, Outbox& outbox)
    : config_(*limits.leaf),
      root_(shard_endpoint(config_.root, limits.share.shard)),
      jobs_(jobs),
      outbox_(outbox),
      links_(limits.max_jobs) {}

std::optional<Refusal> Leaf::refuse(const Hello& hello) const noexcept {
  if (const auto refusal = config_.refuse(hello)) return refusal;
  // A packet of sums, or of norms, which has as many bytes as one of results.
  const unsigned wider_bits = std::max(LeafConfig::kSumBits, unsigned{hello.config.value_bits});
  const std::size_t largest_bytes = sizeof(wire::Header) + std::size_t{hello.config.codes_per_packet} * wider_bits / 8;
  if (largest_bytes > outbox_.io.max_datagram_bytes(root_)) {
    return Refusal{.reason = wire::ErrorReason::kBadConfig, .field = wire::ConfigField::kCodesPerPacket};
  }
  return std::nullopt;
}

RootLink* Leaf::create(const Hello& hello, io::Endpoint from, TimePoint now) noexcept {
  const auto place = std::ranges::find_if(links_, [](const auto& link) { return link == nullptr; });
  const auto held =
      std::ranges::count_if(links_, [from](const auto& link) { return link && link->holder_ip() == from.ip.source(); });
  if (place == links_.end() || held >= static_cast<std::ptrdiff_t>(jobs_.limits().max_jobs_per_address)) {
    jobs_.tell_refusal({.job = hello.job_id, .change = JobChange::kNoPlace}, now);
    return nullptr;
  }
  try {
    *place = std::make_unique<RootLink>(hello, from.ip.source(), config_, jobs_.limits().share);
  } catch (const std::bad_alloc&) {
    jobs_.tell_refusal({.job = hello.job_id, .change = JobChange::kHostFull}, now);
    return nullptr;
  }
  place_plus_one_[hello.job_id] = static_cast<std::uint16_t>(place - links_.begin() + 1);
  return place->get();
}

void Leaf::send(const wire::Header& header, std::span<const std::uint8_t> payload) noexcept {
  outbox_.io.send(root_, bytes_of(header), payload);
}

void Leaf::ask(RootLink& link, TimePoint now) noexcept {
  if (!link.is_hello_due(now)) return;
  outbox_.io.flush();  // the previous HELLO's payload may be queued
  const Join::Message hello = link.say_hello(now);
  send(hello.header, hello.payload);
}

void Leaf::answer_challenge(RootLink& link, const wire::Header& header,
                            const wire::ChallengePayload& payload) noexcept {
  outbox_.io.flush();  // a HELLO without the cookie may be queued
  if (const auto hello = link.take_challenge(header, payload)) send(hello->header, hello->payload);
}

void Leaf::renew(RootLink& link, std::uint64_t run) noexcept {
  // Skips GOODBYE: a free place is held while racks ask for impossible results, so a contest is faster.
  outbox_.io.flush();  // as above
  link.start_over(run);
}

void Leaf::end(RootLink& link) noexcept {
  if (link.joined()) send(link.notice_header(MessageType::kGoodbye));
  forget(link);
}

void Leaf::forget(RootLink& link) noexcept {
  outbox_.io.flush();
  std::uint16_t& place = place_plus_one_[link.job_id()];
  links_[place - 1U].reset();
  place = 0;
}

void Leaf::run_timers(TimePoint now) noexcept {
  for (const auto& place : links_) {
    if (!place) continue;
    RootLink& link = *place;
    ask(link, now);
    if (link.has_fallen_silent(now)) {
      jobs_.events().push(
          {.job = link.job_id(), .change = JobChange::kRootSilent, .workers = link.config().num_workers});
    }
    const Job* job = jobs_.find(link.job_id());
    if (job == nullptr) {
      if (!link.is_wanted(now)) end(link);
    } else if (link.is_alive_due(job->last_heard(), now)) {
      send(link.notice_header(MessageType::kAlive));
      link.said_alive(now);
    }
  }
}

}  // namespace thc::ps
