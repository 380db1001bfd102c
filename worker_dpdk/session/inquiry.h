// Are the servers there? Asked without joining: a HELLO without a cookie, which a server answers and forgets.
#pragma once

#include <cstdint>
#include <vector>

#include "io/packet_io.h"
#include "session/session_config.h"

namespace thc {

/// What a server says to a HELLO without a cookie.
enum class Presence : std::uint8_t {  // _comm has names of them
  kSilent,                            ///< nothing, or nothing that answers this HELLO
  kThere,                             ///< what thc-ps says to whom it may let in: a cookie
  kLeaving,                           ///< that it takes nobody new: it is about to end
  kOther,                             ///< something else: a switch, which knows its workers by their addresses
};

/// Asks the first shard of each of config.servers until all have answered or `timeout` is over; in their order. `pace`:
/// the time until the first repeat.
/// `config` must be resolved. `packet_io` is nobody else's.
std::vector<Presence> ask_servers(const SessionConfig& config, io::PacketIo& packet_io, Duration timeout,
                                  Duration pace);

}  // namespace thc
