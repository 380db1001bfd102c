#pragma once

#include "io/packet_io.h"
#include "session/failure.h"
#include "session/messages.h"
#include "session/slot_stream.h"

namespace thc {

/// For an ERROR other than incomplete, racks_incomplete and unknown_job.
Failure refusal(const ServerMessage& message, io::Endpoint server, const SessionConfig& config);

bool says_larger_packets(const ServerMessage& message, const SessionConfig& config) noexcept;

Failure no_welcome(io::Endpoint server, const SessionConfig& config);
/// The same for a shard of `shards`, while the shard at `server` answered.
Failure no_welcome_of_shard(io::Endpoint shard, io::Endpoint server, std::uint32_t shards, const SessionConfig& config);

/// No WELCOME: the server of this worker's rack got no answer from the root.
Failure no_root(io::Endpoint server, const SessionConfig& config);

/// Whether a small MTU on a part of the path would explain the loss.
enum class LargePackets : std::uint8_t {
  kFit,        ///< no
  kNeverFit,   ///< everything else was answered, and such packets never
  kFitNoMore,  ///< such packets were answered earlier, but not since
};

/// A missing worker that the server rejected: `field` of its settings differs from the job's, with `value` there.
struct Outsider {
  wire::ConfigField field = wire::ConfigField::kNone;  ///< kNone: no such worker
  std::uint32_t value = 0;
};

struct Ports {
  std::uint16_t first;
  std::uint16_t of_packet;
  std::uint16_t last;
};

/// A link's knowledge when an operation has no result in time.
struct NoResult {
  const InFlight* packet;    ///< the oldest without a result, null if none was sent
  bool server_answered;      ///< something was received since its transmission
  Duration silent_for;       ///< how long its repeats got no answer, from a silent server; 0: it answers
  Duration undelivered_for;  ///< how long its repeats got no answer, from a live server; 0: none
  Ports ports;
  LargePackets large_packets;
  Outsider outsider;
  bool rejoined;   ///< the server lost the job meanwhile
  bool of_switch;  ///< the server is a switch
};

/// Whether a datagram (without a tag) may exceed an MTU of 1500 bytes.
bool is_larger_than_ethernet(std::size_t datagram_bytes) noexcept;

/// Other workers push something else at the slot and round of this header.
Failure order_mismatch(const wire::Header& about, io::Endpoint server, const SessionConfig& config);
Failure no_result(const Operation& operation, io::Endpoint server, const SessionConfig& config, const NoResult& known);

/// The server's state of packets in flight is lost. `what` follows the server's name in the message.
Failure lost_round(io::Endpoint server, const std::string& what);

}  // namespace thc
