// Metrics of jobs on several shards, and the number of comparisons that a scrape takes.
#include "metrics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shard_fixture.h"

namespace {

std::size_t comparisons = 0;

}  // namespace

/// In place of the C library's: a search for labels compares strings.
extern "C" int memcmp(const void* a, const void* b, std::size_t bytes) noexcept {
  ++comparisons;
  const auto* left = static_cast<const unsigned char*>(a);
  const auto* right = static_cast<const unsigned char*>(b);
  for (std::size_t i = 0; i < bytes; ++i) {
    if (left[i] != right[i]) return left[i] < right[i] ? -1 : 1;
  }
  return 0;
}

namespace thc::ps {
namespace {

class Metrics : public ShardTest {
 protected:
  /// Workers 0 join that many jobs on one shard.
  void start_jobs(std::uint16_t jobs) {
    start([&](JobLimits& limits) {
      limits.max_jobs = jobs;
      limits.max_memory_bytes = std::size_t{1} << 30;
    });
    for (std::uint16_t job = 0; job < jobs; ++job) {
      now += 100ms;
      ASSERT_EQ(answer_to(0, make_hello(0, job)).type(), wire::MessageType::kWelcome);
    }
    shard->run_timers(now);
  }

  std::size_t comparisons_of_a_scrape() {
    const MetricsCollector collector({&*shard});
    const std::size_t before = comparisons;
    EXPECT_GT(collector.Collect().size(), 10U);
    return comparisons - before;
  }
};

TEST_F(Metrics, AScrapeIsLinearInJobs) {
  start_jobs(25);
  const std::size_t few = comparisons_of_a_scrape();
  start_jobs(200);
  EXPECT_LE(comparisons_of_a_scrape(), 16 * (few + 100));
}

TEST_F(Metrics, SharesOfShardsAreAddedUp) {
  start_jobs(3);
  const auto value = [&](const std::vector<const Shard*>& shards, const std::string& name, const std::string& job) {
    const auto families = MetricsCollector(shards).Collect();
    const auto family = std::ranges::find(families, name, &prometheus::MetricFamily::name);
    double found = 0;
    std::size_t times = 0;
    for (const auto& metric : family->metric) {
      if (!job.empty() && (metric.label.empty() || metric.label[0].value != job)) continue;
      found = family->type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value;
      ++times;
    }
    EXPECT_EQ(times, 1U) << name;
    return found;
  };
  const std::vector<const Shard*> one{&*shard};
  const std::vector<const Shard*> two{&*shard, &*shard};
  from_worker(0, Bytes(5));  // of no job
  for (const auto& [name, job] : std::map<std::string, std::string>{
           {"thc_ps_packets_total", "none"}, {"thc_ps_slot_memory_bytes", "1"}, {"thc_ps_slots", "2"}}) {
    EXPECT_GT(value(one, name, job), 0) << name;
    EXPECT_EQ(value(two, name, job), 2 * value(one, name, job)) << name;
  }
  EXPECT_EQ(value(two, "thc_ps_workers", "1"), 1);
  EXPECT_EQ(value(two, "thc_ps_jobs", ""), 3);
}

}  // namespace
}  // namespace thc::ps
