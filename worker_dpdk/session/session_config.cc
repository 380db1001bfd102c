#include "session/session_config.h"

#include <algorithm>
#include <string>

#include "thc/errors.h"
#include "thc/wire_layout.h"

namespace thc {
namespace {

void require(bool condition, const std::string& message) {
  if (!condition) {
    throw ConfigurationError(message);
  }
}

}  // namespace

std::uint32_t auto_codes_per_packet(std::size_t max_datagram_bytes, unsigned code_bits, unsigned value_bits) noexcept {
  const std::size_t payload_bytes = max_datagram_bytes - std::min(max_datagram_bytes, sizeof(wire::Header));
  const std::size_t fits =
      std::min<std::size_t>(payload_bytes * 8 / std::max(code_bits, value_bits), wire::kAutoCodesPerPacket);
  const std::size_t unit = fits >= wire::kSwitchCodesPerPacket ? wire::kSwitchCodesPerPacket : wire::kMinCodesPerPacket;
  return static_cast<std::uint32_t>(fits / unit * unit);
}

SessionConfig resolve(SessionConfig config, std::size_t max_datagram_bytes, std::size_t common_datagram_bytes) {
  require(!config.servers.empty(), "servers must have at least one server: pass addresses, such as 10.0.0.1");
  require(config.num_workers >= 1 && config.num_workers <= wire::kMaxWorkers,
          "workers must be 1 to " + std::to_string(wire::kMaxWorkers) + ", not " + std::to_string(config.num_workers));
  require(config.worker_id < config.num_workers, "worker must be in 0 .. " + std::to_string(config.num_workers - 1) +
                                                     ", not " + std::to_string(config.worker_id));
  const unsigned narrowest = config.table.value_bits_for(config.num_workers);
  if (config.value_bits == 0) {
    config.value_bits = narrowest;
  }
  require(wire::is_value_bits(config.value_bits), std::string("value_bits must be ") + wire::kValueBitsText);
  require(config.value_bits >= narrowest, "granularity " + std::to_string(config.table.granularity()) + " times " +
                                              std::to_string(config.num_workers) +
                                              " workers overflows 8-bit aggregates; use 16 value bits");
  if (config.codes_per_packet == 0) {
    config.codes_per_packet = auto_codes_per_packet(std::min(max_datagram_bytes, common_datagram_bytes),
                                                    config.table.bits(), config.value_bits);
  }
  require(config.codes_per_packet >= wire::kMinCodesPerPacket && config.codes_per_packet <= wire::kMaxCodesPerPacket &&
              config.codes_per_packet % wire::kMinCodesPerPacket == 0,
          "codes_per_packet must be a multiple of " + std::to_string(wire::kMinCodesPerPacket) + " in " +
              std::to_string(wire::kMinCodesPerPacket) + " .. " + std::to_string(wire::kMaxCodesPerPacket) + ", not " +
              std::to_string(config.codes_per_packet));
  const std::size_t largest_bytes = sizeof(wire::Header) + std::size_t{config.codes_per_packet} *
                                                               std::max(config.table.bits(), config.value_bits) / 8;
  require(largest_bytes <= max_datagram_bytes,
          std::to_string(config.codes_per_packet) + " codes per packet need datagrams of " +
              std::to_string(largest_bytes) + " bytes, the path takes " + std::to_string(max_datagram_bytes));
  if (config.quorum == 0) {
    config.quorum = config.num_workers;
  }
  require(config.quorum <= config.num_workers,
          "quorum " + std::to_string(config.quorum) + " exceeds workers = " + std::to_string(config.num_workers));
  require(config.connect_timeout > Duration::zero(), "connect_s must be positive");
  require(config.operation_timeout > Duration::zero(), "operation_s must be positive");
  require(config.loss_timeout > Duration::zero(), "loss_s must be positive");
  return config;
}

}  // namespace thc
