#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/dpdk_io.h"
#include "io/faulty_io.h"
#include "leaf_config.h"
#include "thc/wire_layout.h"

namespace thc::ps {

struct DpdkOptions {
  bool enabled = false;
  std::string eal_args;  ///< separated by blanks
  std::string device;
  std::uint16_t prefix_length = 24;
  std::string gateway;
  std::vector<io::DpdkNeighbour> neighbours;
  std::uint16_t mtu_bytes = 1500;
};

struct Options {
  std::string listen = "::";
  std::uint16_t port = wire::kUdpPort;
  std::uint16_t threads = 1;
  std::size_t receive_buffer_bytes = std::size_t{64} << 20;
  std::uint32_t max_jobs = 16;
  std::uint32_t max_jobs_per_address = 0;  ///< 0: half of max_jobs, rounded up
  std::uint32_t slots = 0;                 ///< 0: see JobLimits
  std::size_t max_memory_bytes = std::size_t{1} << 30;
  double idle_timeout_s = 30;
  double drain_timeout_s = 5;
  std::string metrics_listen = "127.0.0.1";
  std::uint16_t metrics_port = 0;
  std::string key_file;  ///< empty: jobs without keys
  std::string log_level = "info";
  std::optional<LeafConfig> leaf;  ///< from --upstream, --rack and --racks
  // For tests, from --faults.
  std::optional<io::FaultConfig> faults;
  std::uint32_t rounds_per_epoch = 0;  ///< 0: the default
  DpdkOptions dpdk;
};

/// Returns the exit code after --help, --version or a printed error, else nullopt.
std::optional<int> parse_options(int argc, char** argv, Options& options);

}  // namespace thc::ps
