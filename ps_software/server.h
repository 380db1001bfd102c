#pragma once

#include <prometheus/exposer.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "io/packet_io.h"
#include "job_log.h"
#include "metrics.h"
#include "options.h"
#include "shard.h"

namespace thc::ps {

class Server {
 public:
  /// Starts the threads. Throws thc::Error: port in use, DPDK missing, ...
  explicit Server(const Options& options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  io::Endpoint local() const noexcept { return ios_.front()->local(); }
  /// Refuses new jobs, finishes rounds within the drain timeout, ends the threads and flushes the log.
  void drain();

  /// Whether each packet thread completed a loop since the last call. Call every second.
  bool all_threads_ran() noexcept;

  void log_jobs() { job_log_->update(JobLog::Clock::now()); }

 private:
  void start_threads();
  void stop();
  void end_threads();
  void run_shard(std::size_t index) noexcept;
  void start_metrics(const Options& options);

  std::vector<std::unique_ptr<io::PacketIo>> ios_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::shared_ptr<MetricsCollector> collector_;
  std::unique_ptr<prometheus::Exposer> exposer_;
  std::chrono::steady_clock::duration drain_timeout_;
  std::atomic<bool> draining_{false};
  std::atomic<std::ptrdiff_t> quiet_shards_{0};  // while draining; a shard may become active again
  std::vector<std::atomic<bool>> ran_;           // by thread, since all_threads_ran()
  std::optional<JobLog> job_log_;                // of shard 0, which has all jobs
  std::vector<std::jthread> threads_;            // last: threads end before the members that they use
};

}  // namespace thc::ps
