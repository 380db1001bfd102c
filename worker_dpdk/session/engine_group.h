// What the engines of one session tell each other. Each has a polling thread of its own, and shards of its own of every
// server; nothing else is shared between them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "session/failure.h"
#include "thc/wire_layout.h"

namespace thc {

/// Any thread may call anything. What was told stays.
class EngineGroup {
 public:
  EngineGroup(std::size_t servers, std::uint32_t engines) : engines_(engines), servers_(servers) {}

  std::uint32_t engines() const noexcept { return engines_; }

  /// Engine 0 tells what the first WELCOME of a server says; the others say HELLO when they know how many shards it
  /// has.
  void tell_shape(std::size_t server, const wire::WelcomePayload& shape) noexcept;
  /// Null until it is told.
  const wire::WelcomePayload* shape(std::size_t server) const noexcept;

  /// A packet of codes had a result from that server, so packets of that size get through.
  void tell_codes_answered(std::size_t server) noexcept;
  bool codes_answered(std::size_t server) const noexcept;

  /// Ends the session. The first cause is the one that all engines tell; returns it.
  const Failure& fail(Failure failure);
  /// Null until an engine has failed.
  const Failure* failure() const noexcept;

 private:
  struct Server {
    std::atomic<bool> has_shape{false};
    wire::WelcomePayload shape{};
    std::atomic<bool> codes_answered{false};
  };

  const std::uint32_t engines_;
  std::vector<Server> servers_;
  std::mutex mutex_;
  std::atomic<bool> failed_{false};
  std::optional<Failure> failure_;  ///< under mutex_ until failed_
};

}  // namespace thc
