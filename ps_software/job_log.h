// The log of jobs. Anybody who reaches the server can start jobs, so the log is limited: some lines at once, then one
// every few seconds; the rest is a number.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "job_events.h"

namespace thc::ps {

/// "34 KiB": rounded up, so that --max-memory may be as much.
std::string size_text(std::size_t bytes);

class JobLog {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Level : std::uint8_t { kInfo, kWarning };
  using Write = std::function<void(Level, const std::string&)>;

  /// Lines at once, and how long it takes until there may be one more.
  static constexpr std::uint32_t kBurst = 100;
  static constexpr std::chrono::seconds kRefill{10};
  /// Between two lines about what was left out.
  static constexpr std::chrono::seconds kSummaryInterval{60};

  /// `write` gets every line; `events` outlives this. `place`: of a leaf, "rack 0 of 2, root IP:PORT".
  JobLog(JobEvents& events, Write write, Clock::time_point now, std::string place = {});

  /// Writes what has happened since the last call.
  void update(Clock::time_point now);
  /// As update(), and says at once what was left out.
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
  // Starts and ends without a line of their own: those left out here, and those of them and of the lost ones that a
  // summary has told of.
  struct Numbers {
    std::uint64_t started = 0, ended = 0;
  };
  Numbers left_out_, told_;
};

}  // namespace thc::ps
