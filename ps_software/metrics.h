// What the Prometheus endpoint shows. Reads the shards' counters without stopping them.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "shard.h"

namespace thc::ps {

class MetricsCollector {
 public:
  /// The shards outlive the collector.
  explicit MetricsCollector(std::vector<const Shard*> shards);

  /// All metrics in Prometheus's text format. Called by any thread.
  std::string text() const;

 private:
  std::vector<const Shard*> shards_;
  std::chrono::steady_clock::time_point started_;
};

}  // namespace thc::ps
