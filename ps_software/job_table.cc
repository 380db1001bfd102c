#include "job_table.h"

#include <algorithm>
#include <new>

namespace thc::ps {
namespace {

// Anybody can start jobs, while other packets wait: bounds the bytes written at once, and per second. A job with 4096
// slots costs 0.6 MB, so about fifty start at once.
constexpr double kCreationBudgetBytes = 32e6;
constexpr std::size_t kFixedCostBytes = 256 * 1024;  // for the allocator, the log and the rest

}  // namespace

std::uint32_t JobLimits::most_slots(const JobConfig& config) const noexcept {
  if (slots != 0) return slots;
  // Shards share no state but need the same number, so each computes the first shard's, which needs the most memory.
  const ShardShare first{.shard = 0, .shards = share.shards};
  const LeafConfig* rack = leaf ? &*leaf : nullptr;
  const auto is_possible = [&](std::uint32_t few) {
    return few >= kFewestAutoSlots && norm_slots_of(few) >= share.shards;
  };
  std::uint32_t most = kMostAutoSlots;
  while (is_possible(most / 2) && Job::memory_bytes(config, most, first, rack) > max_memory_bytes / max_jobs) most /= 2;
  return most;
}

JobTable::JobTable(const JobLimits& limits)
    : limits_(limits),
      counters_(std::make_unique<JobCounters[]>(limits.max_jobs)),
      jobs_(limits.max_jobs),
      creation_budget_bytes_(kCreationBudgetBytes) {}

bool JobTable::may_create(io::Endpoint from, TimePoint now) noexcept {
  const std::chrono::duration<double> elapsed = now - last_refill_;
  last_refill_ = now;
  creation_budget_bytes_ =
      std::min(kCreationBudgetBytes, creation_budget_bytes_ + kCreationBudgetBytes * elapsed.count());
  // The creator of the last job leaves half of the budget to others.
  return creation_budget_bytes_ > (from.ip.source() == last_creator_ip_ ? kCreationBudgetBytes / 2 : 0);
}

std::uint32_t JobTable::slots_for(const Hello& hello) const noexcept {
  const std::uint32_t asked = hello.config.slots_asked;
  const std::uint32_t most = limits_.most_slots(hello.config);
  return asked == 0 ? most : std::min(asked, most);
}

Job* JobTable::create(const Hello& hello, std::uint32_t slots, io::Endpoint from, TimePoint now) noexcept {
  const auto place = std::ranges::find_if(jobs_, [](const auto& job) { return job == nullptr; });
  const auto held =
      std::ranges::count_if(jobs_, [from](const auto& job) { return job && job->holder_ip() == from.ip.source(); });
  if (place == jobs_.end() || held >= static_cast<std::ptrdiff_t>(limits_.max_jobs_per_address)) {
    tell_refusal({.job = hello.job_id, .change = JobChange::kNoPlace}, now);
    return nullptr;
  }
  const std::size_t bytes = Job::memory_bytes(hello.config, slots, limits_.share, leaf());
  if (bytes > limits_.max_memory_bytes - memory_bytes_) {
    const std::size_t shards = limits_.share.shards;
    tell_refusal({.job = hello.job_id,
                  .change = JobChange::kNoMemory,
                  .slots = slots,
                  .needed_bytes = bytes * shards,
                  .free_bytes = (limits_.max_memory_bytes - memory_bytes_) * shards},
                 now);
    return nullptr;
  }
  const auto index = static_cast<std::size_t>(place - jobs_.begin());
  try {
    *place = std::make_unique<Job>(hello.job_id, hello.config, slots, limits_.share, leaf(), from.ip.source(),
                                   counters_[index], now);
  } catch (const std::bad_alloc&) {
    tell_refusal({.job = hello.job_id, .change = JobChange::kHostFull}, now);
    return nullptr;
  }
  place_plus_one_[hello.job_id] = static_cast<std::uint16_t>(index + 1);
  memory_bytes_ += bytes;
  creation_budget_bytes_ -= static_cast<double>(kFixedCostBytes + Job::bytes_written(slots, limits_.share, leaf()));
  last_creator_ip_ = from.ip.source();
  ++size_;
  events_.push({.job = hello.job_id,
                .change = JobChange::kStarted,
                .workers = hello.config.num_workers,
                .without_run = hello.run == 0,
                .slots = slots});
  return place->get();
}

void JobTable::tell_refusal(const JobEvent& event, TimePoint now) noexcept {
  if (last_refusal_ && now - *last_refusal_ < kRefusalInterval) return;
  last_refusal_ = now;
  events_.push(event);
}

void JobTable::remove(std::uint16_t job_id, JobChange why) noexcept {
  std::unique_ptr<Job>& place = jobs_[place_plus_one_[job_id] - 1U];
  memory_bytes_ -= Job::memory_bytes(place->config(), place->slots(), limits_.share, leaf());
  events_.push({.job = job_id, .change = why, .workers = place->config().num_workers});
  place.reset();
  place_plus_one_[job_id] = 0;
  --size_;
}

std::uint64_t JobTable::slots_in_use() const noexcept {
  std::uint64_t sum = 0;
  for (const auto& job : jobs_) sum += job ? job->pool().slots_in_use() : 0;
  return sum;
}

void JobTable::publish() noexcept {
  for (const auto& job : jobs_) {
    if (job) job->counters().slots_in_use.set(job->pool().slots_in_use());
  }
}

}  // namespace thc::ps
