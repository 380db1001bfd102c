// Packet threads, each with its shard, and the metrics endpoint.
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
  /// Opens sockets or devices and starts the threads. Throws thc::Error: port in use, DPDK not there, ...
  explicit Server(const Options& options);
  /// Stops at once.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  io::Endpoint local() const noexcept { return ios_.front()->local(); }

  /// Refuses new jobs, finishes what is in flight within the drain timeout, ends the threads, and writes the rest of
  /// the log.
  void drain();

  /// Whether each packet thread has gone round its loop since the last call; of one that is called each second.
  bool all_threads_ran() noexcept;

  /// Writes jobs that started and ended since the last call to the log.
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
  std::atomic<std::ptrdiff_t> quiet_shards_{0};  // of a server that drains; a shard may be active again
  std::vector<std::atomic<bool>> ran_;           // by thread, since all_threads_ran()
  std::optional<JobLog> job_log_;                // of shard 0, which has all jobs
  std::vector<std::jthread> threads_;            // last: they end before what they use
};

}  // namespace thc::ps
