#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <chrono>
#include <vector>

#include "shard.h"

namespace thc::ps {

class MetricsCollector final : public prometheus::Collectable {
 public:
  /// The shards outlive the collector.
  explicit MetricsCollector(std::vector<const Shard*> shards);

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  std::vector<const Shard*> shards_;
  std::chrono::steady_clock::time_point started_;
};

}  // namespace thc::ps
