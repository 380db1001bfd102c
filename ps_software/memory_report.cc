#include "memory_report.h"

#include <array>

namespace thc::ps {
namespace {

constexpr std::uint16_t kUsualCodes = 1024;  // in 1500 bytes, and what switches take

/// Of sums of 8 bits, which most jobs have. Other settings do not matter for the memory.
JobConfig job_of(std::uint16_t codes_per_packet) {
  constexpr std::array<std::uint16_t, 2> kTable{0, 1};
  return {.num_workers = 2,
          .value_bits = 8,
          .quorum = 2,
          .settings_hash = 0,
          .codes_per_packet = codes_per_packet,
          .slots_asked = 0,
          .table = LookupTable(1, kTable)};
}

}  // namespace

std::string size_text(std::size_t bytes) {
  constexpr std::size_t kKiB = 1024, kMiB = kKiB * 1024;
  const bool large = bytes >= 10 * kMiB;
  const std::size_t unit = large ? kMiB : kKiB;
  return std::to_string((bytes + unit - 1) / unit) + (large ? " MiB" : " KiB");
}

std::string slots_text(const JobLimits& limits) {
  const auto slots = [&](std::uint16_t codes) { return std::to_string(limits.most_slots(job_of(codes))); };
  const std::size_t share_bytes = limits.max_memory_bytes * limits.share.shards / limits.max_jobs;
  return "a job has " + slots(kUsualCodes) + " slots of packets of " + std::to_string(kUsualCodes) + " codes, " +
         slots(8192) + " of 8192, " + slots(16384) + " of 16384 (--slots auto: " + size_text(share_bytes) +
         " for each job, --max-memory divided by --max-jobs)";
}

std::optional<std::string> memory_warning(const JobLimits& limits) {
  const JobConfig job = job_of(kUsualCodes);
  const std::uint32_t slots = limits.most_slots(job);
  const std::size_t needed_bytes = Job::memory_bytes(job, slots, limits.share, nullptr);
  if (needed_bytes <= limits.max_memory_bytes) return std::nullopt;
  return "a job of packets of " + std::to_string(kUsualCodes) + " codes has no room here: its " +
         std::to_string(slots) + " slots take " + size_text(needed_bytes * limits.share.shards) +
         "; raise --max-memory to that or more" + (limits.slots != 0 ? ", or lower --slots" : "");
}

}  // namespace thc::ps
