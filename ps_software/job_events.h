#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "counters.h"

namespace thc::ps {

enum class JobChange : std::uint8_t {
  kStarted,   ///< its first worker joined
  kLeft,      ///< it ended: all workers said GOODBYE
  kIdle,      ///< it ended: no worker was heard of for the idle timeout
  kReplaced,  ///< it ended: its workers answered no PROBE, and another training has its number
  // The job was rejected:
  kNoPlace,   ///< too many jobs, on the server or from its address
  kNoMemory,  ///< too little memory for its slots
  kHostFull,  ///< the host has too little memory
  // Leaves only:
  kRootLost,     ///< it ended: the root does not know it
  kRefused,      ///< the root rejects it, perhaps for now
  kRootSilent,   ///< the root does not answer
  kOtherShards,  ///< the root has another number of packet threads
};

struct JobEvent {
  std::uint16_t job = 0;
  JobChange change{};
  std::uint8_t workers = 0;                                   ///< num_workers of the job
  bool without_run = false;                                   ///< kStarted: its workers name no run
  wire::ErrorReason reason = wire::ErrorReason::kUnknownJob;  ///< kRefused: the root's reason
  wire::ConfigField field{};
  std::uint16_t shards = 0;      ///< kOtherShards: the root's
  std::uint32_t slots = 0;       ///< kStarted, kNoMemory: of the job, on the whole server
  std::size_t needed_bytes = 0;  ///< kNoMemory: for the slots, on the whole server
  std::size_t free_bytes = 0;    ///< kNoMemory: available

  bool started() const noexcept { return change == JobChange::kStarted; }
  /// Workers of another training with this job number could join it.
  bool may_pair() const noexcept { return started() && without_run && workers > 1; }
  bool ended() const noexcept {
    return change == JobChange::kLeft || change == JobChange::kIdle || change == JobChange::kReplaced ||
           change == JobChange::kRootLost;
  }
};

/// From one packet thread to the logging thread, with a fixed size. Counts starts and ends that find it full.
class JobEvents {
 public:
  static constexpr std::size_t kCapacity = 256;
  void push(const JobEvent& event) noexcept {
    const std::size_t written = written_.load(std::memory_order_relaxed);
    if (written - read_.load(std::memory_order_acquire) == kCapacity) {
      if (event.started()) lost_starts_.add();
      if (event.ended()) lost_ends_.add();
      return;
    }
    events_[written % kCapacity] = event;
    written_.store(written + 1, std::memory_order_release);
  }
  bool pop(JobEvent& event) noexcept {
    const std::size_t read = read_.load(std::memory_order_relaxed);
    if (read == written_.load(std::memory_order_acquire)) return false;
    event = events_[read % kCapacity];
    read_.store(read + 1, std::memory_order_release);
    return true;
  }
  /// From any thread.
  std::uint64_t lost_starts() const noexcept { return lost_starts_.get(); }
  std::uint64_t lost_ends() const noexcept { return lost_ends_.get(); }

 private:
  std::array<JobEvent, kCapacity> events_;
  std::atomic<std::size_t> written_{0};
  std::atomic<std::size_t> read_{0};
  Counter lost_starts_, lost_ends_;
};

}  // namespace thc::ps
