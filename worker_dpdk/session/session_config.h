// Settings of a session, and the rules that make them whole.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "io/packet_io.h"
#include "thc/lookup_table.h"

namespace thc {

/// The clock of all session timers.
using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Duration = std::chrono::microseconds;

inline Duration elapsed(TimePoint since, TimePoint now) noexcept {
  return std::chrono::duration_cast<Duration>(now - since);
}

/// What happens to a packet without a result.
enum class Delivery : std::uint8_t {
  kReliable,      ///< sent again until the operation's deadline
  kLossTolerant,  ///< CODES: given up after the loss timeout, coordinates count as zero (paper, section 6). NORM:
                  ///< reliable
};

struct SessionConfig {
  std::vector<io::Endpoint> servers{};  ///< partition p goes to servers[p mod servers.size()]
  /// Of each server, where a name has addresses of both families. servers has those in use.
  std::vector<std::vector<io::Endpoint>> addresses{};
  std::uint16_t job_id = 0;
  std::uint8_t worker_id = 0;    ///< 0 .. num_workers - 1
  std::uint8_t num_workers = 1;  ///< n
  LookupTable table;
  unsigned value_bits = 0;  ///< 8 or 16 bits of an aggregate coordinate; 0: the narrowest that cannot overflow
  std::uint32_t codes_per_packet = 0;  ///< multiple of 64; 0: the largest that fits the path to every server
  /// codes_per_packet is less than this worker's paths take, as one of several servers said: the other workers hear it,
  /// too, and leave the servers that had let them in with more. Those are asked again until the connect timeout.
  bool others_follow = false;
  std::uint64_t run = 0;            ///< which training, the same on all workers; 0: not told
  std::uint32_t settings_hash = 0;  ///< of settings that all workers share but this library does not use
  std::uint32_t arithmetic = 0;     ///< 24 bits: what codes come from, the same on all workers; only compared
  std::uint8_t quorum = 0;          ///< contributions that complete a slot; 0: all workers
  Delivery delivery = Delivery::kReliable;
  Duration connect_timeout{10'000'000};
  Duration operation_timeout{60'000'000};
  Duration loss_timeout{50'000};
};

/// Codes of a full packet when none are given: what fits the path both as codes and as aggregate, in multiples of the
/// switch's 1024 (of 64 where less than 1024 fit), at most wire::kAutoCodesPerPacket.
std::uint32_t auto_codes_per_packet(std::size_t max_datagram_bytes, unsigned code_bits, unsigned value_bits) noexcept;

/// Fills in the zeros of `config`. Throws ConfigurationError naming the setting that is out of range.
/// `common_datagram_bytes`: as PacketIo's, what packets are as large as when config does not say.
SessionConfig resolve(SessionConfig config, std::size_t max_datagram_bytes,
                      std::size_t common_datagram_bytes = SIZE_MAX);

}  // namespace thc
