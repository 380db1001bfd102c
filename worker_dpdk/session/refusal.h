// Words for what servers refuse and for deadlines that pass.
#pragma once

#include "io/packet_io.h"
#include "session/failure.h"
#include "session/messages.h"
#include "session/slot_stream.h"

namespace thc {

/// The failure an ERROR other than incomplete and unknown_job means.
Failure refusal(const ServerMessage& message, io::Endpoint server, const SessionConfig& config);

/// No WELCOME within the connect timeout.
Failure no_welcome(io::Endpoint server, const SessionConfig& config);

/// No result within the operation timeout. `packet` is the oldest without one, null when none was sent;
/// `server_answered`: something was received since it was sent; `rejoined`: the server lost the job meanwhile.
Failure no_result(const Operation& operation, const InFlight* packet, io::Endpoint server, const SessionConfig& config,
                  bool server_answered, bool rejoined);

/// The server is back, but what it knew of packets in flight cannot be had again.
Failure lost_round(io::Endpoint server, const std::string& why);

}  // namespace thc
