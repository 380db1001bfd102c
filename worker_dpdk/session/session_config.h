#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "io/packet_io.h"
#include "thc/lookup_table.h"

namespace thc {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Duration = std::chrono::microseconds;

inline Duration elapsed(TimePoint since, TimePoint now) noexcept {
  return std::chrono::duration_cast<Duration>(now - since);
}

struct SessionConfig {
  std::vector<io::Endpoint> servers{};  ///< partition p goes to servers[p mod servers.size()]
  /// Per server; names may have addresses of both families. `servers` has the ones in use.
  std::vector<std::vector<io::Endpoint>> addresses{};
  std::uint16_t job_id = 0;
  std::uint8_t worker_id = 0;    ///< 0 .. num_workers - 1
  std::uint8_t num_workers = 1;  ///< n
  LookupTable table;
  unsigned value_bits = 0;             ///< 8 or 16 bits of an aggregate coordinate; 0: the narrowest without overflow
  std::uint32_t codes_per_packet = 0;  ///< multiple of 64; 0: the largest that fits the path to every server
  /// codes_per_packet was reduced for one of several servers. Other workers follow, and leave servers with larger
  /// packets; such servers are asked again until the connect timeout.
  bool others_follow = false;
  std::uint64_t run = 0;            ///< ID shared by all workers of one training; 0: none
  std::uint32_t settings_hash = 0;  ///< of shared settings that this library does not use
  std::uint32_t arithmetic = 0;     ///< 24 bits: identifies how codes are computed; only compared
  std::uint8_t quorum = 0;          ///< contributions that complete a slot; 0: all workers
  /// CODES without a result are dropped after the loss timeout, and count as zero (paper, section 6). Other packets are
  /// repeated until the operation's deadline.
  bool loss_tolerant = false;
  Duration connect_timeout{10'000'000};
  Duration operation_timeout{60'000'000};
  Duration loss_timeout{50'000};
};

/// Codes and aggregate fit the path: a multiple of a switch's 1024 (else of 64), at most wire::kAutoCodesPerPacket.
std::uint32_t auto_codes_per_packet(std::size_t max_datagram_bytes, unsigned code_bits, unsigned value_bits) noexcept;

/// Fills in zeros; packets also fit `common_datagram_bytes`. Throws ConfigurationError naming the setting.
SessionConfig resolve(SessionConfig config, std::size_t max_datagram_bytes,
                      std::size_t common_datagram_bytes = SIZE_MAX);

}  // namespace thc
