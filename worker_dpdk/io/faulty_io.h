// Drops, duplicates and reorders datagrams, for tests and demonstrations of recovery.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "io/forwarding_io.h"

namespace thc::io {

/// Probabilities per datagram and direction; each is 0 .. 1, the sum at most 1.
struct FaultConfig {
  double drop = 0;
  double duplicate = 0;
  double reorder = 0;  ///< held back and let go after later datagrams
  std::uint64_t seed = 1;
};

/// It allocates, unlike other back ends.
class FaultyIo final : public ForwardingIo {
 public:
  /// Throws ConfigurationError for invalid probabilities.
  FaultyIo(std::unique_ptr<PacketIo> inner, const FaultConfig& config);

  std::size_t receive(std::span<RxPacket> packets) noexcept override;
  using PacketIo::send;
  bool send(Endpoint to, std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload,
            std::span<const std::uint8_t> trailer) noexcept override;
  void flush() noexcept override;
  void wait(std::chrono::microseconds timeout) noexcept override;

 private:
  enum class Fault : std::uint8_t { kNone, kDrop, kDuplicate, kReorder };

  struct Held {
    Endpoint peer;
    std::vector<std::uint8_t> datagram;
    bool congested = false;
  };

  Fault draw() noexcept;
  void release_held_sends() noexcept;

  FaultConfig config_;
  std::mt19937_64 random_;
  std::vector<Held> held_sends_;  // released at the flush after next, or when the caller waits
  std::uint32_t flushes_held_ = 0;
  std::vector<Held> held_receives_;  // returned by the next call
  std::vector<Held> handed_out_;     // returned by the last call: the caller may still read them
};

}  // namespace thc::io
