// Loses, doubles and reorders datagrams on purpose, around any PacketIo. For tests and demonstrations of recovery.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "io/packet_io.h"

namespace thc::io {

/// Probabilities per datagram in each direction, each 0 .. 1, together at most 1.
struct FaultConfig {
  double drop = 0;
  double duplicate = 0;
  double reorder = 0;  ///< held back and let go after later datagrams
  std::uint64_t seed = 1;
};

struct FaultCounters {
  std::uint64_t dropped = 0;
  std::uint64_t duplicated = 0;
  std::uint64_t reordered = 0;
};

class FaultyIo final : public PacketIo {
 public:
  /// Throws ConfigurationError for rates that are no probabilities.
  FaultyIo(std::unique_ptr<PacketIo> inner, const FaultConfig& config);

  std::size_t receive(std::span<RxPacket> packets) noexcept override;
  using PacketIo::send;
  bool send(Endpoint to, std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload,
            std::span<const std::uint8_t> trailer) noexcept override;
  void flush() noexcept override;
  void wait(std::chrono::microseconds timeout) noexcept override;
  void wake() noexcept override { inner_->wake(); }
  Endpoint local() const noexcept override { return inner_->local(); }
  std::size_t max_datagram_bytes(Endpoint to) const noexcept override { return inner_->max_datagram_bytes(to); }
  std::size_t common_datagram_bytes(Endpoint to) const noexcept override { return inner_->common_datagram_bytes(to); }
  bool is_own_host(Endpoint to) const noexcept override { return inner_->is_own_host(to); }
  Endpoint simplify(Endpoint peer) const noexcept override { return inner_->simplify(peer); }
  std::size_t receive_buffer_bytes() const noexcept override { return inner_->receive_buffer_bytes(); }
  const IoCounters& counters() const noexcept override { return inner_->counters(); }

  const FaultCounters& faults() const noexcept { return faults_; }

 private:
  static constexpr std::size_t kHeld = 32;  // datagrams held back in each direction; with all taken, none is held
  static constexpr std::size_t kMaxDatagramBytes = 65535;

  enum class Fault : std::uint8_t { kNone, kDrop, kDuplicate, kReorder };

  // Copies of datagrams held back, in order of arrival, in buffers made once.
  class Store {
   public:
    Store();
    bool full() const noexcept { return used_ == kHeld; }
    bool empty() const noexcept { return used_ == 0; }
    std::size_t size() const noexcept { return used_; }
    const RxPacket& operator[](std::size_t i) const noexcept { return packets_[i]; }
    void add(Endpoint peer, std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload,
             std::span<const std::uint8_t> trailer, bool congested = false) noexcept;
    void clear() noexcept { used_ = 0; }

   private:
    std::vector<std::uint8_t> buffer_;
    std::array<RxPacket, kHeld> packets_{};
    std::size_t used_ = 0;
  };

  Fault draw(const Store& store) noexcept;
  std::size_t receive_fresh(std::span<RxPacket> packets) noexcept;
  void release_held_sends() noexcept;

  std::unique_ptr<PacketIo> inner_;
  FaultConfig config_;
  std::mt19937_64 random_;
  FaultCounters faults_;
  Store held_sends_;  // let go at the flush after next, or when the caller waits
  std::uint32_t flushes_held_ = 0;
  // Received datagrams held back now, and those of the last call, which the caller may still look at.
  std::array<Store, 2> held_receives_;
  std::size_t holding_ = 0;
  std::size_t taken_ = 0;  // of the other store
};

}  // namespace thc::io
