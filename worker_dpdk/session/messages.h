// Messages of a worker. Parsing checks everything that needs no session state.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "session/session_config.h"
#include "thc/hello.h"
#include "thc/wire_layout.h"

namespace thc {

struct ServerMessage {
  wire::Header header;
  wire::MessageType type;
  std::span<const std::uint8_t> payload;
  /// A full queue on the path: marked on the way down, or reported by the server for this worker's packets.
  bool congested;
};

/// Returns nullopt unless version, type, job, addressee and length are right.
std::optional<ServerMessage> parse_server_message(std::span<const std::uint8_t> datagram,
                                                  const SessionConfig& config) noexcept;

/// parse_server_message() has checked its length.
template <typename Payload>
Payload payload_of(const ServerMessage& message) noexcept {
  Payload payload;
  std::memcpy(&payload, message.payload.data(), sizeof(payload));
  return payload;
}

/// With the fields that never change in a session.
wire::Header make_header(wire::MessageType type, const SessionConfig& config) noexcept;
JobConfig job_config(const SessionConfig& config);
Hello hello_of(const SessionConfig& config, std::uint64_t nonce);

}  // namespace thc
