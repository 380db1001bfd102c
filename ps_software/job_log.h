// Anybody can start jobs, so the log allows kBurst lines at once, then one per kRefill; summaries count the others.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "job_events.h"

namespace thc::ps {

/// "34 KiB", rounded up, for use as --max-memory.
std::string size_text(std::size_t bytes);

class JobLog {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Level : std::uint8_t { kInfo, kWarning };
  using Write = std::function<void(Level, const std::string&)>;

  static constexpr std::uint32_t kBurst = 100;
  static constexpr std::chrono::seconds kRefill{10};
  static constexpr std::chrono::seconds kSummaryInterval{60};

  /// `events` outlives this. `place`: of a leaf, "rack 0 of 2, root IP:PORT".
  JobLog(JobEvents& events, Write write, Clock::time_point now, std::string place = {});
  void update(Clock::time_point now);
  /// As update(), and writes the summary at once.
  void finish(Clock::time_point now);

 private:
  std::string line_of(const JobEvent& event) const;
  void refill(Clock::time_point now);
  void summarize(Clock::time_point now);

  JobEvents& events_;
  const Write write_;
  const std::string place_;
  std::uint32_t budget_ = kBurst;
  Clock::time_point last_refill_;
  Clock::time_point last_summary_;
  // Starts and ends that the limit dropped, and that summaries reported (with events lost by the queue).
  struct Numbers {
    std::uint64_t started = 0, ended = 0;
  };
  Numbers left_out_, told_;
};

}  // namespace thc::ps
