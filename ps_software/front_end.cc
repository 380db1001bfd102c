#include "front_end.h"

#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "io/address.h"
#include "io/authenticated_io.h"
#include "io/dpdk_io.h"
#include "io/faulty_io.h"
#include "io/job_keys.h"
#include "io/udp_io.h"
#include "thc/errors.h"

namespace thc::ps {
namespace {

io::DpdkNeighbour parse_neighbour(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos) {
    throw ConfigurationError("--dpdk-neighbour takes IP=MAC, for example 10.0.0.1=02:00:00:00:00:01, not " + text);
  }
  return {.ip = io::parse_ipv4(text.substr(0, equals)), .mac = io::parse_mac(text.substr(equals + 1))};
}

std::vector<std::unique_ptr<io::PacketIo>> open_dpdk(const Options& options) {
  io::DpdkConfig config;
  std::istringstream eal_args(options.dpdk.eal_args);
  for (std::string argument; eal_args >> argument;) config.eal_args.push_back(argument);
  if (!options.dpdk.device.empty()) config.devices.push_back(options.dpdk.device);
  config.local = {.ip = io::parse_ipv4(options.listen), .port = options.port};
  config.prefix_length = static_cast<std::uint8_t>(options.dpdk.prefix_length);
  if (!options.dpdk.gateway.empty()) config.gateway_ip = io::parse_ipv4(options.dpdk.gateway);
  for (const std::string& neighbour : options.dpdk.neighbours) config.neighbours.push_back(parse_neighbour(neighbour));
  config.mtu_bytes = options.dpdk.mtu_bytes;
  config.verify_udp_checksum = options.dpdk.verify_udp_checksum;
  config.queues = options.threads;
  return io::make_dpdk_ios(config);
}

std::vector<std::unique_ptr<io::PacketIo>> open_udp(const Options& options) {
  io::UdpConfig config;
  config.local = {.ip = io::parse_ipv4(options.listen), .port = options.port};
  config.receive_buffer_bytes = options.receive_buffer_bytes;
  config.answers = true;
  return io::make_udp_ios(config, options.threads);
}

}  // namespace

std::vector<std::unique_ptr<io::PacketIo>> open_front_end(const Options& options) {
  std::optional<io::JobKeys> keys;
  if (!options.key_file.empty()) keys = io::JobKeys::read(options.key_file);  // before any device starts
  std::vector<std::unique_ptr<io::PacketIo>> ios = options.dpdk.enabled ? open_dpdk(options) : open_udp(options);
  for (std::size_t i = 0; i < ios.size(); ++i) {
    if (options.faults) {
      io::FaultConfig faults = *options.faults;
      faults.seed += i;
      ios[i] = std::make_unique<io::FaultyIo>(std::move(ios[i]), faults);
    }
    if (keys) {
      std::optional<io::Endpoint> root;
      if (options.leaf) root = shard_endpoint(options.leaf->root, static_cast<std::uint16_t>(i));
      ios[i] = std::make_unique<io::AuthenticatedIo>(std::move(ios[i]), *keys, io::Direction::kDown, root);
    }
  }
  return ios;
}

}  // namespace thc::ps
