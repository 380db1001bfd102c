// Threads that share the work of a call.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>

namespace thc {

inline constexpr unsigned kMaxThreads = 8;

/// Helper threads of for_each, which any number of threads may call at the same time: each works on its own call, and
/// waits for no other. A forked process has no helpers: callers work alone.
class ThreadPool {
 public:
  /// threads: 1 .. kMaxThreads, the calling one among them. Throws ConfigurationError for others, or std::system_error.
  explicit ThreadPool(unsigned threads);
  /// Waits for the helpers to end. No call may be under way.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  unsigned threads() const noexcept { return threads_; }

  /// Calls task(i) once for every i < count, in any order, in any of the threads, with the caller's floating-point
  /// environment, and waits for all. If a task throws, the rest is skipped and the first exception is rethrown.
  void for_each(std::size_t count, const std::function<void(std::size_t)>& task);

 private:
  class Helpers;

  bool forked() const noexcept;

  unsigned threads_;
  pid_t process_;                     // that has the helpers
  std::unique_ptr<Helpers> helpers_;  // null with one thread
};

/// Ranges of one call per thread: more than one, so that a thread that comes late or is interrupted gets fewer.
inline constexpr std::size_t kRangesPerThread = 4;

/// Calls work(first, size) for ranges of 0 .. count - 1, which begin at multiples of `unit`. All have at least `least`
/// coordinates, but for the last or only one. pool: may be null. Kernels give the same bits for any number of threads,
/// and std::bad_alloc of any thread reaches their callers.
template <class Work>
void for_each_range(ThreadPool* pool, std::size_t count, std::size_t unit, std::size_t least, const Work& work) {
  const auto divide_up = [](std::size_t a, std::size_t b) { return (a + b - 1) / b; };
  const std::size_t most_ranges = pool == nullptr || pool->threads() == 1 ? 1 : kRangesPerThread * pool->threads();
  const std::size_t even =
      divide_up(count, std::clamp<std::size_t>(count / std::max<std::size_t>(least, 1), 1, most_ranges));
  const std::size_t range = divide_up(even, unit) * unit;
  if (count <= range) {
    work(0, count);
    return;
  }
  const auto task = [&](std::size_t i) { work(i * range, std::min(range, count - i * range)); };
  pool->for_each(divide_up(count, range), std::ref(task));
}

}  // namespace thc
