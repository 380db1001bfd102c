// Threads that share the work of a call.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>

namespace thc {

inline constexpr unsigned kMaxThreads = 8;

/// Helper threads that sleep until a thread calls for_each. Any number of threads may call it at the same time: each
/// takes part in its own call, so that helpers that are busy elsewhere cost speed, and nobody waits for their other
/// work. In a process forked from the one that made the pool there are no helpers: callers do all themselves.
class ThreadPool {
 public:
  /// threads: 1 .. kMaxThreads that work on a call, the calling one among them. Throws ConfigurationError for others,
  /// and std::system_error when threads cannot be started.
  explicit ThreadPool(unsigned threads);
  /// Waits for the helpers to end. No call may be under way.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  unsigned threads() const noexcept { return threads_; }

  /// Calls task(i) once for every i < count, in any order and by any of the threads, and returns when all have
  /// returned. Helpers compute in the caller's floating-point environment (rounding, flushing of denormals). When a
  /// task throws, tasks that have not begun are skipped and the first exception is thrown on.
  void for_each(std::size_t count, const std::function<void(std::size_t)>& task);

 private:
  class Helpers;

  bool forked() const noexcept;

  unsigned threads_;
  pid_t process_;                     // that has the helpers
  std::unique_ptr<Helpers> helpers_;  // null with one thread
};

}  // namespace thc
