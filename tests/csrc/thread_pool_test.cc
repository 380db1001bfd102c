#include "thc/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cfenv>
#include <memory>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#include "thc/errors.h"

namespace thc {
namespace {

constexpr std::size_t kTasks = 1000;

/// Times that each of `count` tasks was called, by one for_each.
std::vector<int> times_called(ThreadPool& pool, std::size_t count) {
  std::vector<std::atomic<int>> times(count);
  pool.for_each(count, [&](std::size_t i) { ++times[i]; });
  return {times.begin(), times.end()};
}

TEST(ThreadPool, CallsEveryTaskOnce) {
  for (const unsigned threads : {1U, 2U, 3U, kMaxThreads}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{7}, kTasks}) {
      EXPECT_EQ(times_called(pool, count), std::vector<int>(count, 1)) << threads << " threads";
    }
  }
}

TEST(ThreadPool, HelpersTakePart) {
  ThreadPool pool(2);
  std::atomic<int> present = 0;
  // Neither task returns before both have begun.
  pool.for_each(2, [&](std::size_t) {
    ++present;
    while (present < 2) std::this_thread::yield();
  });
  EXPECT_EQ(present, 2);
}

TEST(ThreadPool, RefusesOtherNumbersOfThreads) {
  EXPECT_THROW(ThreadPool(0), ConfigurationError);
  EXPECT_THROW(ThreadPool(kMaxThreads + 1), ConfigurationError);
}

TEST(ThreadPool, EndsWithoutCalls) {
  for (int i = 0; i < 100; ++i) ThreadPool pool(kMaxThreads);
}

TEST(ThreadPool, ServesSeveralCallersAtOnce) {
  ThreadPool pool(3);
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&pool] {
      for (std::size_t count = 0; count < 200; ++count) {
        EXPECT_EQ(times_called(pool, count), std::vector<int>(count, 1));
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST(ThreadPool, TasksMayCallIt) {
  ThreadPool pool(3);
  std::atomic<int> called = 0;
  pool.for_each(10, [&](std::size_t) { pool.for_each(10, [&](std::size_t) { ++called; }); });
  EXPECT_EQ(called, 100);
}

TEST(ThreadPool, ExceptionsReachTheirCallerAlone) {
  for (const unsigned threads : {1U, 3U}) {
    ThreadPool pool(threads);
    std::thread other([&pool] {
      for (int i = 0; i < 100; ++i) EXPECT_EQ(times_called(pool, 10), std::vector<int>(10, 1));
    });
    for (int i = 0; i < 100; ++i) {
      EXPECT_THROW(pool.for_each(10, [](std::size_t) { throw std::bad_alloc(); }), std::bad_alloc);
    }
    other.join();
    EXPECT_EQ(times_called(pool, kTasks), std::vector<int>(kTasks, 1));
  }
}

TEST(ThreadPool, AnExceptionSkipsTasksThatHaveNotBegun) {
  ThreadPool pool(2);
  std::atomic<std::size_t> called = 0;
  EXPECT_THROW(pool.for_each(kTasks,
                             [&](std::size_t) {
                               ++called;
                               throw std::runtime_error("no");
                             }),
               std::runtime_error);
  EXPECT_LE(called, 2U);
}

TEST(ThreadPool, HelpersComputeInTheCallersFloatingPointEnvironment) {
  ThreadPool pool(2);
  for (const int mode : {FE_UPWARD, FE_TONEAREST}) {
    std::fesetround(mode);
    std::atomic<int> present = 0;
    std::vector<int> modes(2);
    pool.for_each(2, [&](std::size_t i) {
      modes[i] = std::fegetround();
      ++present;
      while (present < 2) std::this_thread::yield();
    });
    EXPECT_EQ(modes, std::vector<int>(2, mode));
  }
}

TEST(ThreadPool, WorksWithoutHelpersInAForkedChild) {
  auto pool = std::make_unique<ThreadPool>(3);
  std::atomic<bool> stop = false;
  // Keeps the pool's locks busy while the process forks.
  std::thread caller([&] {
    while (!stop) pool->for_each(3, [](std::size_t) {});
  });
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    ASSERT_NE(child, -1);
    if (child == 0) {
      alarm(20);  // instead of hanging
      std::size_t sum = 0;
      pool->for_each(kTasks, [&](std::size_t task) { sum += task; });
      pool.reset();
      _exit(sum == kTasks * (kTasks - 1) / 2 ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  stop = true;
  caller.join();
  EXPECT_EQ(times_called(*pool, kTasks), std::vector<int>(kTasks, 1));
}

}  // namespace
}  // namespace thc
