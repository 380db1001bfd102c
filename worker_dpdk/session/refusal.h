// Words for what servers refuse and for deadlines that pass.
#pragma once

#include "io/packet_io.h"
#include "session/failure.h"
#include "session/messages.h"
#include "session/slot_stream.h"

namespace thc {

/// The failure an ERROR other than incomplete, racks_incomplete and unknown_job means.
Failure refusal(const ServerMessage& message, io::Endpoint server, const SessionConfig& config);

/// Whether an ERROR says that the job has larger packets than this worker.
bool says_larger_packets(const ServerMessage& message, const SessionConfig& config) noexcept;

/// No WELCOME within the connect timeout.
Failure no_welcome(io::Endpoint server, const SessionConfig& config);
/// The same of another shard of `shards` than the one at `server`, which answered.
Failure no_welcome_of_shard(io::Endpoint shard, io::Endpoint server, std::uint32_t shards, const SessionConfig& config);

/// No WELCOME, because the server of this worker's rack has had no answer from the root.
Failure no_root(io::Endpoint server, const SessionConfig& config);

/// Whether packets that are too large for a part of the path would explain it.
enum class LargePackets : std::uint8_t {
  kFit,        ///< no
  kNeverFit,   ///< all else was answered, and no such packet ever
  kFitNoMore,  ///< such packets were answered before, and none since
};

/// A missing worker that the server has refused: `field` of its settings differs from the job's, and has `value` there.
struct Outsider {
  wire::ConfigField field = wire::ConfigField::kNone;  ///< kNone: there is none
  std::uint32_t value = 0;
};

/// The ports of a server's shards.
struct Ports {
  std::uint16_t first;
  std::uint16_t of_packet;
  std::uint16_t last;
};

/// What a link knows when an operation has no result in time.
struct NoResult {
  const InFlight* packet;    ///< the oldest without one, null when none was sent
  bool server_answered;      ///< something was received since it was sent
  Duration silent_for;       ///< how long the packet was repeated without any answer from the server; 0: it answers
  Duration undelivered_for;  ///< how long it was repeated without an answer to it, from a server that answers; 0: none
  Ports ports;
  LargePackets large_packets;
  Outsider outsider;
  bool rejoined;   ///< the server lost the job meanwhile
  bool of_switch;  ///< the server is a switch
};

/// Whether a datagram (without a tag) may be too large for a path with an MTU of 1500 bytes.
bool is_larger_than_ethernet(std::size_t datagram_bytes) noexcept;

/// The other workers push something else at the slot and round of this header.
Failure order_mismatch(const wire::Header& about, io::Endpoint server, const SessionConfig& config);

/// No result within the operation timeout.
Failure no_result(const Operation& operation, io::Endpoint server, const SessionConfig& config, const NoResult& known);

/// What the server knew of packets in flight cannot be had again. `what`: what it did, after its name.
Failure lost_round(io::Endpoint server, const std::string& what);

}  // namespace thc
