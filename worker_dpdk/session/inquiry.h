// Asks whether servers live, without joining: a server answers a HELLO without a cookie and forgets it.
#pragma once

#include <cstdint>
#include <vector>

#include "io/packet_io.h"
#include "session/session_config.h"

namespace thc {

enum class Presence : std::uint8_t {  // _comm has names for them
  kSilent,                            ///< no answer to this HELLO
  kThere,                             ///< a cookie: thc-ps accepts workers
  kLeaving,                           ///< thc-ps is about to end and rejects new workers
  kOther,                             ///< another answer: a switch, which knows its workers by address
};

/// Returns in the order of servers, once all first shards have answered or `timeout` ends. `pace`: time until the first
/// repeat. `config` must be resolved. `packet_io` has no other user.
std::vector<Presence> ask_servers(const SessionConfig& config, io::PacketIo& packet_io, Duration timeout,
                                  Duration pace);

}  // namespace thc
