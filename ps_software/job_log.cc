#include "job_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace thc::ps {
namespace {

std::string name_of(wire::ErrorReason reason, wire::ConfigField field) {
  const auto index = static_cast<std::size_t>(reason), field_index = static_cast<std::size_t>(field);
  std::string name = index < wire::kErrorReasonNames.size() ? wire::kErrorReasonNames[index] : "";
  if (name.empty()) name = fmt::format("reason {}", index);
  if (field == wire::ConfigField::kNone || field_index >= wire::kConfigFieldNames.size()) return name;
  return fmt::format("{} ({})", name, wire::kConfigFieldNames[field_index]);
}

const char* hint_for(wire::ErrorReason reason) noexcept {
  switch (reason) {
    case wire::ErrorReason::kDuplicateWorker:
      return ": another server has this --rack, or had it until a moment ago";
    case wire::ErrorReason::kConfigMismatch:
      return ": the workers of another rack have other settings, or its server has other --racks";
    default:
      return "";
  }
}

}  // namespace

std::string size_text(std::size_t bytes) {
  constexpr std::size_t kKiB = 1024, kMiB = kKiB * 1024;
  const bool large = bytes >= 10 * kMiB;
  const std::size_t unit = large ? kMiB : kKiB;
  return fmt::format("{} {}", (bytes + unit - 1) / unit, large ? "MiB" : "KiB");
}

std::string JobLog::line_of(const JobEvent& event) const {
  std::string job = fmt::format("job {}", event.job);
  switch (event.change) {
    case JobChange::kStarted:
      // A leaf's job has the root's slots; the root logs their number.
      return fmt::format("{} started: {} worker{}{}{}", job, event.workers, event.workers == 1 ? "" : "s",
                         place_.empty() ? fmt::format(", {} slots", event.slots) : "; " + place_,
                         event.may_pair()
                             ? "; its workers name no run, so workers of another training with this job number would "
                               "be summed with them: set Session(run=...) or THC_RUN on all workers"
                             : "");
    case JobChange::kLeft:
      return job + " ended: all workers have left";
    case JobChange::kIdle:
      return job + " ended: its workers were silent for --idle-timeout";
    case JobChange::kReplaced:
      return job + " ended: its workers did not answer, and another training uses its number";
    case JobChange::kNoPlace:
      return job + " refused: --max-jobs or --max-jobs-per-address is reached; raise it";
    case JobChange::kNoMemory:
      return fmt::format("{} refused: its {} slots take {}, and {} KiB of --max-memory are left; raise it, or lower {}",
                         job, event.slots, size_text(event.needed_bytes), event.free_bytes / 1024,
                         place_.empty() ? "--slots" : "the root's --slots; " + place_);
    case JobChange::kHostFull:
      return job + " refused: this host has no memory for it; free memory, or lower --max-memory";
    case JobChange::kRootLost:
      return job + " ended: the root does not know it any more (restarted, or idle for too long); " + place_;
    case JobChange::kRefused:
      return fmt::format("{}: the root refuses it, {}{}; {}", job, name_of(event.reason, event.field),
                         hint_for(event.reason), place_);
    case JobChange::kRootSilent:
      return fmt::format("{} waits: the root does not answer; {}", job, place_);
    case JobChange::kOtherShards:
      return fmt::format("{} cannot start: the root has {} packet threads; give this server as many (--threads); {}",
                         job, event.shards, place_);
  }
  return job;
}

JobLog::JobLog(JobEvents& events, Write write, Clock::time_point now, std::string place)
    : events_(events),
      write_(std::move(write)),
      place_(std::move(place)),
      last_refill_(now),
      last_summary_(now - kSummaryInterval) {}

void JobLog::update(Clock::time_point now) {
  refill(now);
  JobEvent event;
  while (events_.pop(event)) {
    if (budget_ == 0) {
      left_out_.started += event.started() ? 1 : 0;
      left_out_.ended += event.ended() ? 1 : 0;
      continue;
    }
    --budget_;
    write_(event.may_pair() ? Level::kWarning : Level::kInfo, line_of(event));
  }
  if (now - last_summary_ >= kSummaryInterval) summarize(now);
}

void JobLog::finish(Clock::time_point now) {
  update(now);
  summarize(now);
}

void JobLog::refill(Clock::time_point now) {
  const auto lines = static_cast<std::uint64_t>((now - last_refill_) / kRefill);
  last_refill_ += lines * kRefill;
  budget_ = static_cast<std::uint32_t>(std::min<std::uint64_t>(kBurst, budget_ + lines));
}

void JobLog::summarize(Clock::time_point now) {
  const Numbers all{.started = left_out_.started + events_.lost_starts(),
                    .ended = left_out_.ended + events_.lost_ends()};
  const std::uint64_t started = all.started - told_.started, ended = all.ended - told_.ended;
  if (started == 0 && ended == 0) return;
  write_(Level::kInfo, fmt::format("too many jobs to log them all: {} more started, {} more ended", started, ended));
  told_ = all;
  last_summary_ = now;
}

}  // namespace thc::ps
