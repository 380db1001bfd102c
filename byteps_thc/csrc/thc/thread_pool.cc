#include "thc/thread_pool.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "thc/errors.h"

#ifdef __GLIBCXX__
// The version before libstdc++ 12 does the same, and wheels with it load with GCC 11's (manylinux_2_34, release.sh).
#define THC_WAIT "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE"
__asm__(".symver " THC_WAIT ", " THC_WAIT "@GLIBCXX_3.4.11");
#undef THC_WAIT
#endif

namespace thc {
namespace {

/// Time for which a caller polls for the end of its helpers' last tasks before it sleeps: a wake-up takes as long.
constexpr std::chrono::microseconds kSpin{30};

/// One for_each; lives on the stack of its caller.
struct Call {
  Call(std::size_t tasks, const std::function<void(std::size_t)>& to_do) : count(tasks), task(to_do) {
    std::fegetenv(&environment);
  }

  const std::size_t count;
  const std::function<void(std::size_t)>& task;
  std::fenv_t environment{};
  std::atomic<std::size_t> next{0};  // the first task that nobody has taken
  std::atomic<unsigned> helping{0};  // helpers that may still touch this
  std::exception_ptr failure;
};

}  // namespace

class ThreadPool::Helpers {
 public:
  explicit Helpers(unsigned count) {
    for (unsigned i = 0; i < count; ++i) {
      threads_.emplace_back([this](const std::stop_token& stop) { help(stop); });
    }
  }

  void for_each(Call& call) {
    {
      const std::lock_guard lock(mutex_);
      calls_.push_back(&call);
    }
    for (std::size_t i = 0; i < std::min(threads_.size(), call.count - 1); ++i) {
      begun_.notify_one();
    }
    take_tasks(call);
    std::unique_lock lock(mutex_);
    std::erase(calls_, &call);  // no more helpers
    lock.unlock();
    const auto sleep_from = std::chrono::steady_clock::now() + kSpin;
    while (call.helping != 0 && std::chrono::steady_clock::now() < sleep_from) {
      std::this_thread::yield();
    }
    lock.lock();
    ended_.wait(lock, [&] { return call.helping == 0; });
    if (call.failure) {
      std::rethrow_exception(call.failure);
    }
  }

 private:
  /// The loop of a helper.
  void help(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (begun_.wait(lock, stop, [this] { return !calls_.empty(); })) {
      Call& call = *calls_.front();
      ++call.helping;
      lock.unlock();
      std::fesetenv(&call.environment);
      take_tasks(call);
      lock.lock();
      std::erase(calls_, &call);  // all its tasks are taken
      if (--call.helping == 0) {
        ended_.notify_all();
      }
    }
  }

  void take_tasks(Call& call) {
    try {
      for (std::size_t i = call.next++; i < call.count; i = call.next++) {
        call.task(i);
      }
    } catch (...) {
      call.next = call.count;
      const std::lock_guard lock(mutex_);
      if (!call.failure) {
        call.failure = std::current_exception();
      }
    }
  }

  std::mutex mutex_;  // guards calls_, what is written to their `helping`, and their `failure`
  std::condition_variable_any begun_;
  std::condition_variable ended_;
  std::vector<Call*> calls_;           // with tasks to take, oldest first
  std::vector<std::jthread> threads_;  // last: they end before the members they use
};

ThreadPool::ThreadPool(unsigned threads) : threads_(threads), process_(getpid()) {
  if (threads < 1 || threads > kMaxThreads) {
    throw ConfigurationError("threads must be in 1 .. " + std::to_string(kMaxThreads) + ", got " +
                             std::to_string(threads));
  }
  if (threads > 1) {
    helpers_ = std::make_unique<Helpers>(threads - 1);
  }
}

ThreadPool::~ThreadPool() {
  if (forked()) {
    // The helpers do not exist here, and may have held locks during the fork: destroying them would wait.
    [[maybe_unused]] const Helpers* left_behind = helpers_.release();
  }
}

bool ThreadPool::forked() const noexcept { return getpid() != process_; }

void ThreadPool::for_each(std::size_t count, const std::function<void(std::size_t)>& task) {
  if (helpers_ != nullptr && count > 1 && !forked()) {
    Call call(count, task);
    helpers_->for_each(call);
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    task(i);
  }
}

}  // namespace thc
