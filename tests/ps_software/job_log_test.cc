#include "job_log.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace thc::ps {
namespace {

using namespace std::chrono_literals;

using Lines = std::vector<std::string>;

class JobLogTest : public ::testing::Test {
 protected:
  /// A job that starts and ends at once, as a stranger can make with two packets.
  void flash(std::uint16_t job) {
    events.push({.job = job, .change = JobChange::kStarted, .workers = 1, .slots = 64});
    events.push({.job = job, .change = JobChange::kLeft, .workers = 1});
  }

  Lines take() { return std::exchange(lines, {}); }

  JobEvents events;
  Lines lines;
  JobLog::Clock::time_point now{std::chrono::hours(1)};
  JobLog log{events,
             [this](JobLog::Level level, const std::string& line) {
               lines.push_back((level == JobLog::Level::kWarning ? "warning: " : "") + line);
             },
             now};
};

TEST_F(JobLogTest, StartAndEndOfAShortJob) {
  flash(7);
  events.push({.job = 8, .change = JobChange::kStarted, .workers = 4, .slots = 4096});
  events.push({.job = 8, .change = JobChange::kIdle, .workers = 4});
  events.push({.job = 9, .change = JobChange::kReplaced, .workers = 4});
  events.push({.job = 9, .change = JobChange::kHostFull});
  log.update(now);
  EXPECT_EQ(take(),
            (Lines{"job 7 started: 1 worker, 64 slots", "job 7 ended: all workers have left",
                   "job 8 started: 4 workers, 4096 slots", "job 8 ended: its workers were silent for --idle-timeout",
                   "job 9 ended: its workers did not answer, and another training uses its number",
                   "job 9 refused: this host has no memory for it; free memory, or lower --max-memory"}));
  log.finish(now + 1s);
  EXPECT_EQ(take(), Lines{});
}

TEST_F(JobLogTest, AJobWithoutARunIsAWarning) {
  events.push({.job = 7, .change = JobChange::kStarted, .workers = 2, .without_run = true, .slots = 64});
  events.push({.job = 8, .change = JobChange::kStarted, .workers = 2, .slots = 64});
  events.push({.job = 9, .change = JobChange::kStarted, .workers = 1, .without_run = true, .slots = 64});
  log.update(now);
  const auto lines = take();
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_TRUE(lines[0].starts_with("warning: job 7 started: 2 workers, 64 slots; its workers name no run")) << lines[0];
  EXPECT_NE(lines[0].find("THC_RUN on all workers"), std::string::npos);
  EXPECT_EQ(lines[1], "job 8 started: 2 workers, 64 slots");
  EXPECT_EQ(lines[2], "job 9 started: 1 worker, 64 slots") << "nobody to pair with";
}

TEST_F(JobLogTest, AFloodBecomesANumber) {
  for (std::uint16_t job = 0; job < 100; ++job) flash(job);
  log.update(now);
  const auto first = take();
  ASSERT_EQ(first.size(), JobLog::kBurst + 1);
  EXPECT_EQ(first.back(), "too many jobs to log them all: 50 more started, 50 more ended");
  for (std::uint16_t job = 0; job < 10; ++job) flash(job);
  log.update(now + 1s);
  EXPECT_EQ(take(), Lines{}) << "one summary in a minute";
  log.update(now + JobLog::kSummaryInterval);
  EXPECT_EQ(take(), Lines{"too many jobs to log them all: 10 more started, 10 more ended"});
}

TEST_F(JobLogTest, WhatFindsTheQueueFullIsCounted) {
  for (int i = 0; i < 1000; ++i) flash(7);
  log.finish(now);
  const auto written = take();
  ASSERT_EQ(written.size(), JobLog::kBurst + 1);
  EXPECT_EQ(written.back(), "too many jobs to log them all: 950 more started, 950 more ended");
}

TEST_F(JobLogTest, WhatIsLeftOutIsAnEndOnlyIfItEnds) {
  for (int i = 0; i < 50; ++i) flash(7);
  for (int i = 0; i < 1001; ++i) events.push({.job = 8, .change = JobChange::kNoPlace});
  log.finish(now);
  EXPECT_EQ(take().size(), JobLog::kBurst) << "no summary: there is nothing that it could count";
}

TEST_F(JobLogTest, AFloodThatGoesOnTakesSevenLinesAMinute) {
  const auto start = now;
  for (; now < start + 1h; now += 1s) {
    for (int i = 0; i < 50; ++i) flash(7);
    log.update(now);
  }
  EXPECT_LE(take().size(), JobLog::kBurst + 60 * 7);
  flash(8);
  log.update(now + JobLog::kBurst * JobLog::kRefill);
  EXPECT_EQ(take().front(), "job 8 started: 1 worker, 64 slots") << "when it is over, jobs have lines again";
}

TEST_F(JobLogTest, TwoThreads) {
  constexpr std::uint64_t kJobs = 20000;
  std::thread packets([this] {
    for (std::uint64_t i = 0; i < kJobs; ++i) flash(static_cast<std::uint16_t>(i));
  });
  JobEvent event;
  std::uint64_t started = 0, ended = 0;
  const auto take_all = [&] {
    while (events.pop(event)) ++(event.started() ? started : ended);
  };
  while (started + ended + events.lost_starts() + events.lost_ends() < 2 * kJobs) take_all();
  packets.join();
  EXPECT_EQ(started + events.lost_starts(), kJobs);
  EXPECT_EQ(ended + events.lost_ends(), kJobs);
}

}  // namespace
}  // namespace thc::ps
