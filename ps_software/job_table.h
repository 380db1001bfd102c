#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "counters.h"
#include "job.h"
#include "job_events.h"
#include "thc/hello.h"

namespace thc::ps {

struct JobLimits {
  static constexpr std::uint32_t kFewestAutoSlots = 16;  ///< or more, so that each shard has one for norms
  static constexpr std::uint32_t kMostAutoSlots = 4096;

  ShardShare share;
  std::uint32_t max_jobs = 16;
  std::uint32_t max_jobs_per_address = UINT32_MAX;  ///< started from one IP address
  /// On the whole server. 0: a power of two up to kMostAutoSlots whose results fit 1 / max_jobs of the memory.
  std::uint32_t slots = 0;
  std::size_t max_memory_bytes = std::size_t{1} << 30;  ///< of all jobs on this shard
  std::chrono::milliseconds idle_timeout{30'000};
  std::uint16_t codes_multiple = 1;  ///< payload_count of CODES must be a multiple of this power of two
  std::optional<LeafConfig> leaf{};  ///< if this is a rack's server
  std::uint32_t rounds_per_epoch =
      0;  ///< per slot, 1 .. 2^30; 0: unlimited, as jobs without keys have no replay protection
  /// For one job, on the whole server.
  std::uint32_t most_slots(const JobConfig& config) const noexcept;
};

class JobTable {
 public:
  explicit JobTable(const JobLimits& limits);
  Job* find(std::uint16_t job_id) const noexcept {
    const std::uint16_t place = place_plus_one_[job_id];
    return place == 0 ? nullptr : jobs_[place - 1].get();
  }
  /// Limits the rate of new jobs; clients retry after some milliseconds.
  bool may_create(io::Endpoint from, TimePoint now) noexcept;
  std::uint32_t slots_for(const Hello& hello) const noexcept;
  /// Starts a job without workers. Returns nullptr without room, or if this address has too many jobs.
  Job* create(const Hello& hello, std::uint32_t slots, io::Endpoint from, TimePoint now) noexcept;
  void tell_refusal(const JobEvent& event, TimePoint now) noexcept;
  /// `why` must not be kStarted.
  void remove(std::uint16_t job_id, JobChange why) noexcept;
  template <typename OnEnd>
  void remove_idle(TimePoint now, OnEnd&& on_end) noexcept {
    for (const auto& job : jobs_) {
      if (!job || now - job->last_heard() <= limits_.idle_timeout) continue;
      const std::uint16_t job_id = job->id();
      remove(job_id, JobChange::kIdle);
      on_end(job_id);
    }
  }
  std::uint64_t slots_in_use() const noexcept;

  void publish() noexcept;

  template <typename Visit>
  void for_each(Visit&& visit) noexcept {
    for (const auto& job : jobs_) {
      if (job) visit(*job);
    }
  }

  std::uint32_t size() const noexcept { return size_; }
  const JobLimits& limits() const noexcept { return limits_; }
  /// One per place in the table. Any thread.
  std::span<const JobCounters> counters() const noexcept { return {counters_.get(), limits_.max_jobs}; }
  /// For one reader, on any thread.
  JobEvents& events() noexcept { return events_; }

 private:
  /// Rejected clients retry, and anybody can be one: limits the log.
  static constexpr std::chrono::seconds kRefusalInterval{10};

  const LeafConfig* leaf() const noexcept { return limits_.leaf ? &*limits_.leaf : nullptr; }

  const JobLimits limits_;
  std::unique_ptr<JobCounters[]> counters_;  // outlives the jobs, which write to it until destroyed
  std::vector<std::unique_ptr<Job>> jobs_;
  std::array<std::uint16_t, 65536> place_plus_one_{};  // by job id
  std::size_t memory_bytes_ = 0;
  std::uint32_t size_ = 0;
  double creation_budget_bytes_;
  io::IpAddress last_creator_ip_{};
  TimePoint last_refill_{};
  std::optional<TimePoint> last_refusal_;  ///< the last logged one
  JobEvents events_;
};

}  // namespace thc::ps
