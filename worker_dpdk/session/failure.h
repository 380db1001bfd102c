// Why an operation or a session ended: created on the polling thread, thrown on any thread.
#pragma once

#include <cstdint>
#include <string>

#include "thc/errors.h"

namespace thc {

struct Failure {
  enum class Kind : std::uint8_t { kTransport, kRefused, kRestart, kDeadline };

  Kind kind = Kind::kTransport;
  std::string message;
  std::uint32_t slot = 0;
  std::uint32_t round = 0;
  std::uint64_t missing_workers = 0;
  std::uint32_t codes_per_packet = 0;  ///< kRefused: a smaller number that would be accepted; 0: none

  [[noreturn]] void raise() const {
    switch (kind) {
      case Kind::kRefused:
        throw ServerRefusedError(message, codes_per_packet);
      case Kind::kRestart:
        throw RestartError(message);
      case Kind::kDeadline:
        throw DeadlineError(message, slot, round, missing_workers);
      case Kind::kTransport:
        break;
    }
    throw TransportError(message);
  }
};

}  // namespace thc
