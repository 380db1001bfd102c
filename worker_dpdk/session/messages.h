// Messages a worker sends and takes. Taking checks everything that needs no state of the session.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "session/session_config.h"
#include "thc/hello.h"
#include "thc/wire_layout.h"

namespace thc {

/// A datagram from a server whose version, type, job, addressee and length are right.
struct ServerMessage {
  wire::Header header;
  wire::MessageType type;
  std::span<const std::uint8_t> payload;
  /// A queue on the way was full: marked on the way down, or the server says so of this worker's packets.
  bool congested;
};

/// Nothing when the datagram is malformed or for somebody else.
std::optional<ServerMessage> parse_server_message(std::span<const std::uint8_t> datagram,
                                                  const SessionConfig& config) noexcept;

/// Payload of a message whose length was checked by parse_server_message.
template <typename Payload>
Payload payload_of(const ServerMessage& message) noexcept;

/// Header with the fields that never change in a session.
wire::Header make_header(wire::MessageType type, const SessionConfig& config) noexcept;

/// What HELLO says of the job.
JobConfig job_config(const SessionConfig& config);

}  // namespace thc
