#include "session/session_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "thc/errors.h"
#include "thc/wire_layout.h"

namespace thc {
namespace {

template <typename... Args>
void require(bool condition, fmt::format_string<Args...> message, Args&&... args) {
  if (!condition) {
    throw ConfigurationError(fmt::format(message, std::forward<Args>(args)...));
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
  require(config.num_workers >= 1 && config.num_workers <= wire::kMaxWorkers, "workers must be 1 to {}, not {}",
          wire::kMaxWorkers, config.num_workers);
  require(config.worker_id < config.num_workers, "worker must be in 0 .. {}, not {}", config.num_workers - 1,
          config.worker_id);
  const unsigned narrowest = config.table.value_bits_for(config.num_workers);
  if (config.value_bits == 0) {
    config.value_bits = narrowest;
  }
  require(wire::is_value_bits(config.value_bits), "value_bits must be {}", wire::kValueBitsText);
  require(config.value_bits >= narrowest,
          "granularity {} times {} workers overflows 8-bit aggregates; use 16 value bits", config.table.granularity(),
          config.num_workers);
  if (config.codes_per_packet == 0) {
    config.codes_per_packet = auto_codes_per_packet(std::min(max_datagram_bytes, common_datagram_bytes),
                                                    config.table.bits(), config.value_bits);
  }
  require(config.codes_per_packet >= wire::kMinCodesPerPacket && config.codes_per_packet <= wire::kMaxCodesPerPacket &&
              config.codes_per_packet % wire::kMinCodesPerPacket == 0,
          "codes_per_packet must be a multiple of {0} in {0} .. {1}, not {2}", wire::kMinCodesPerPacket,
          wire::kMaxCodesPerPacket, config.codes_per_packet);
  const std::size_t largest_bytes = sizeof(wire::Header) + std::size_t{config.codes_per_packet} *
                                                               std::max(config.table.bits(), config.value_bits) / 8;
  require(largest_bytes <= max_datagram_bytes, "{} codes per packet need datagrams of {} bytes, the path takes {}",
          config.codes_per_packet, largest_bytes, max_datagram_bytes);
  if (config.quorum == 0) {
    config.quorum = config.num_workers;
  }
  require(config.quorum <= config.num_workers, "quorum {} exceeds workers = {}", config.quorum, config.num_workers);
  require(config.connect_timeout > Duration::zero(), "connect_s must be positive");
  require(config.operation_timeout > Duration::zero(), "operation_s must be positive");
  require(config.loss_timeout > Duration::zero(), "loss_s must be positive");
  return config;
}

}  // namespace thc
