#include "server.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>

#include "io/address.h"
#include "io/authenticated_io.h"
#include "io/checked_io.h"
#include "io/dpdk_io.h"
#include "io/faulty_io.h"
#include "io/job_keys.h"
#include "io/name_lookup.h"
#include "io/udp_io.h"
#include "thc/errors.h"
#include "thc/kernel_random.h"

namespace thc::ps {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kTimerInterval{50};
// A client that sends half a request occupies a thread until this timeout; 256 clients delay a scrape by a second.
constexpr std::size_t kMetricsThreads = 64;
constexpr std::size_t kMetricsRequestMs = 250;
constexpr std::size_t kMetricsBacklog = 1024;  // the kernel's queue until a thread is free

steady_clock::duration seconds(double value) {
  return std::chrono::duration_cast<steady_clock::duration>(std::chrono::duration<double>(value));
}

std::vector<std::unique_ptr<io::PacketIo>> open_dpdk(const Options& options) {
  io::DpdkConfig config;
  std::istringstream eal_args(options.dpdk.eal_args);
  for (std::string argument; eal_args >> argument;) config.eal_args.push_back(argument);
  if (!options.dpdk.device.empty()) config.devices.push_back(options.dpdk.device);
  config.local = {io::resolve_own_host(options.listen), options.port};
  config.prefix_length = options.dpdk.prefix_length;
  if (!options.dpdk.gateway.empty()) config.gateway_ip = io::parse_ipv4(options.dpdk.gateway);
  config.neighbours = options.dpdk.neighbours;
  config.mtu_bytes = options.dpdk.mtu_bytes;
  config.queues = options.threads;
  return io::make_dpdk_ios(config);
}

std::vector<std::unique_ptr<io::PacketIo>> open_udp(const Options& options) {
  io::UdpConfig config;
  config.local = {io::resolve_own_host(options.listen), options.port};
  config.receive_buffer_bytes = options.receive_buffer_bytes;
  config.answers = true;
  return io::make_udp_ios(config, options.threads);
}

/// One per packet thread. Throws thc::Error.
std::vector<std::unique_ptr<io::PacketIo>> open_ios(const Options& options) {
  start_libsodium();  // before packet threads draw random numbers
  std::optional<io::JobKeys> keys;
  if (!options.key_file.empty()) keys = io::JobKeys::read(options.key_file);  // fail before any device starts
  std::vector<std::unique_ptr<io::PacketIo>> ios = options.dpdk.enabled ? open_dpdk(options) : open_udp(options);
  for (std::size_t i = 0; i < ios.size(); ++i) {
    if (options.faults) {
      io::FaultConfig faults = *options.faults;
      faults.seed += i;
      ios[i] = std::make_unique<io::FaultyIo>(std::move(ios[i]), faults);
    }
    if (!keys) {
      ios[i] = std::make_unique<io::CheckedIo>(std::move(ios[i]));
    } else {
      std::optional<io::Endpoint> root;
      if (options.leaf) root = shard_endpoint(options.leaf->root, static_cast<std::uint16_t>(i));
      ios[i] = std::make_unique<io::AuthenticatedIo>(std::move(ios[i]), *keys, io::Direction::kDown, root);
    }
  }
  return ios;
}

/// Rounds are 32-bit serial numbers. A recorded packet of a job with a key must never be valid again, so epochs end
/// before a slot repeats a round: a day at 10^4 rounds a second per slot.
std::uint32_t rounds_per_epoch(const Options& options) {
  constexpr std::uint32_t kRoundsPerEpoch = 1U << 30;
  if (options.rounds_per_epoch != 0) return options.rounds_per_epoch;
  return options.key_file.empty() ? 0 : kRoundsPerEpoch;
}

JobLimits limits_of(const Options& options, std::size_t shard, std::size_t shards) {
  return {.share = {.shard = static_cast<std::uint16_t>(shard), .shards = static_cast<std::uint16_t>(shards)},
          .max_jobs = options.max_jobs,
          .max_jobs_per_address =
              options.max_jobs_per_address != 0 ? options.max_jobs_per_address : (options.max_jobs + 1) / 2,
          .slots = options.slots,
          .max_memory_bytes = options.max_memory_bytes / shards,
          .idle_timeout = std::chrono::duration_cast<std::chrono::milliseconds>(seconds(options.idle_timeout_s)),
          .leaf = options.leaf,
          .rounds_per_epoch = rounds_per_epoch(options)};
}

std::string place_of(const std::optional<LeafConfig>& leaf) {
  if (!leaf) return {};
  return fmt::format("rack {} of {} (workers {}-{} of {}), root {}", leaf->rack, leaf->racks, leaf->first_worker,
                     leaf->first_worker + leaf->rack_workers - 1, leaf->num_workers, io::to_string(leaf->root));
}

constexpr std::uint16_t kUsualCodes = 1024;  // fits 1500 bytes, and switches take it

/// Most jobs have sums of 8 bits. Other settings do not affect the memory.
JobConfig job_of(std::uint16_t codes_per_packet) {
  constexpr std::array<std::uint16_t, 2> kTable{0, 1};
  return {.num_workers = 2,
          .value_bits = 8,
          .quorum = 2,
          .settings_hash = 0,
          .codes_per_packet = codes_per_packet,
          .slots_asked = 0,
          .table = LookupTable(1, kTable)};
}

std::string slots_text(const JobLimits& limits) {
  const auto slots = [&](std::uint16_t codes) { return limits.most_slots(job_of(codes)); };
  const std::size_t share_bytes = limits.max_memory_bytes * limits.share.shards / limits.max_jobs;
  return fmt::format(
      "a job has {} slots of packets of {} codes, {} of 8192, {} of 16384 (--slots auto: {} for each job, --max-memory "
      "divided by --max-jobs)",
      slots(kUsualCodes), kUsualCodes, slots(8192), slots(16384), size_text(share_bytes));
}

std::optional<std::string> memory_warning(const JobLimits& limits) {
  const JobConfig job = job_of(kUsualCodes);
  const std::uint32_t slots = limits.most_slots(job);
  const std::size_t needed_bytes = Job::memory_bytes(job, slots, limits.share, nullptr);
  if (needed_bytes <= limits.max_memory_bytes) return std::nullopt;
  return fmt::format(
      "a job of packets of {} codes has no room here: its {} slots take {}; raise --max-memory to that or more{}",
      kUsualCodes, slots, size_text(needed_bytes * limits.share.shards), limits.slots != 0 ? ", or lower --slots" : "");
}

/// The root decides how many slots a leaf has.
void log_limits(const Options& options, const JobLimits& limits) {
  if (options.leaf) return spdlog::info("serves {}", place_of(options.leaf));
  if (const auto warning = memory_warning(limits)) return spdlog::warn(*warning);
  if (options.slots == 0) spdlog::info(slots_text(limits));
}

}  // namespace

Server::Server(const Options& options)
    : ios_(open_ios(options)), drain_timeout_(seconds(options.drain_timeout_s)), ran_(ios_.size()) {
  for (std::size_t i = 0; i < ios_.size(); ++i) {
    shards_.push_back(std::make_unique<Shard>(limits_of(options, i, ios_.size()), *ios_[i]));
  }
  start_metrics(options);
  log_limits(options, limits_of(options, 0, ios_.size()));
  job_log_.emplace(
      shards_.front()->job_events(),
      [](JobLog::Level level, const std::string& line) {
        spdlog::log(level == JobLog::Level::kWarning ? spdlog::level::warn : spdlog::level::info, line);
      },
      JobLog::Clock::now(), place_of(options.leaf));
  try {
    start_threads();
  } catch (const std::exception& error) {
    stop();  // the ones that started
    throw TransportError(
        fmt::format("cannot start the packet threads: {} (allow more threads or memory, or ask for fewer --threads)",
                    error.what()));
  }
}

Server::~Server() { stop(); }

void Server::start_threads() {
  for (std::size_t i = 0; i < ios_.size(); ++i) {
    threads_.emplace_back([this, i] { run_shard(i); });
  }
}

void Server::stop() {
  drain_timeout_ = {};
  end_threads();
}

void Server::start_metrics(const Options& options) {
  if (options.metrics_port == 0) return;
  std::vector<const Shard*> shards;
  for (const auto& shard : shards_) shards.push_back(shard.get());
  collector_ = std::make_shared<MetricsCollector>(std::move(shards));
  const io::Endpoint endpoint{io::resolve_own_host(options.metrics_listen), options.metrics_port};
  const std::string address = io::to_string(endpoint);
  try {
    exposer_ = std::make_unique<prometheus::Exposer>(std::vector<std::string>{
        "listening_ports", address, "num_threads", std::to_string(kMetricsThreads), "request_timeout_ms",
        std::to_string(kMetricsRequestMs), "listen_backlog", std::to_string(kMetricsBacklog)});
  } catch (const std::exception&) {
    throw TransportError("cannot serve metrics on " + address +
                         ": is the port in use? (choose another --metrics-port)" +
                         (endpoint.ip.is_ipv4() ? ""
                                                : " Or has the web server no IPv6, as Debian 12's civetweb? (choose an "
                                                  "IPv4 address for --metrics-listen)"));
  }
  exposer_->RegisterCollectable(collector_);
  spdlog::info("metrics on http://{}/metrics", address);
}

bool Server::all_threads_ran() noexcept {
  bool all = true;
  for (std::atomic<bool>& ran : ran_) all &= ran.exchange(false, std::memory_order_relaxed);
  return all;
}

void Server::run_shard(std::size_t index) noexcept {
  Shard& shard = *shards_[index];
  io::PacketIo& packet_io = *ios_[index];
  auto next_timer = steady_clock::now();
  auto drain_deadline = steady_clock::time_point::max();
  bool quiet = false;
  for (;;) {
    const auto now = steady_clock::now();
    if (shard.poll(now) == 0) {
      packet_io.wait(std::clamp(std::chrono::ceil<std::chrono::microseconds>(shard.next_result() - now),
                                std::chrono::microseconds(0), std::chrono::microseconds(kTimerInterval)));
    }
    if (now >= next_timer) {
      shard.run_timers(now);
      ran_[index].store(true, std::memory_order_relaxed);
      next_timer = now + kTimerInterval;
    }
    if (!draining_.load(std::memory_order_acquire)) continue;
    if (drain_deadline == steady_clock::time_point::max()) {
      shard.drain(now);
      drain_deadline = now + drain_timeout_;
      continue;  // take packets that came during the wait, perhaps GOODBYE, before is_quiet()
    }
    if (shard.is_quiet(now) != quiet) {
      quiet = !quiet;
      quiet_shards_.fetch_add(quiet ? 1 : -1, std::memory_order_relaxed);
    }
    // Other shards need this thread: its DPDK queue receives frames for them.
    if (quiet_shards_.load(std::memory_order_relaxed) == std::ssize(shards_) || now >= drain_deadline) return;
  }
}

void Server::end_threads() {
  draining_.store(true, std::memory_order_release);
  for (const auto& packet_io : ios_) packet_io->wake();
  threads_.clear();  // joins
}

void Server::drain() {
  end_threads();
  job_log_->finish(JobLog::Clock::now());
  for (const JobCounters& job : shards_.front()->jobs()) {
    if (job.job_plus_one.get() != 0) spdlog::info("job {} ended: the server stops", job.job_plus_one.get() - 1);
  }
}

}  // namespace thc::ps
