// Tags every datagram of jobs with keys, and drops datagrams without a valid tag (docs/contributors/security.md).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "io/forwarding_io.h"
#include "io/job_keys.h"

namespace thc::io {

inline constexpr std::size_t kTagBytes = 8;
using Tag = std::array<std::uint8_t, kTagBytes>;
using PayloadDigest = std::array<std::uint8_t, 16>;

/// Poly1305. Two digests reveal its key, so a digest never leaves the process.
PayloadDigest digest_payload(const MessageKeys& keys, std::span<const std::uint8_t> payload) noexcept;
/// SipHash-2-4 of the wire header and the payload's digest. `header`: sizeof(wire::Header) bytes.
Tag make_tag(const MessageKeys& keys, const std::uint8_t* header, const PayloadDigest& digest) noexcept;

class AuthenticatedIo final : public ForwardingIo {
 public:
  /// `sends`: the direction of this end. A leaf sends down to workers, but up to its root at `above`. Throws
  /// TransportError if libsodium cannot start.
  AuthenticatedIo(std::unique_ptr<PacketIo> inner, const JobKeys& keys, Direction sends,
                  std::optional<Endpoint> above = std::nullopt);

  /// Strips valid tags and counts other packets as rx_unauthenticated. May return 0 although packets arrived.
  std::size_t receive(std::span<RxPacket> packets) noexcept override;
  using PacketIo::send;
  /// `header` must begin with the whole wire header; `trailer` must be empty. A payload sent several times in a row
  /// before flush() is hashed once.
  bool send(Endpoint to, std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload,
            std::span<const std::uint8_t> trailer) noexcept override;
  void flush() noexcept override;
  std::size_t max_datagram_bytes(Endpoint to) const noexcept override {
    return inner().max_datagram_bytes(to) - kTagBytes;
  }
  std::size_t common_datagram_bytes(Endpoint to) const noexcept override {
    return inner().common_datagram_bytes(to) - kTagBytes;
  }
  const IoCounters& counters() const noexcept override;

 private:
  // A cache of derived keys. Its size is fixed because anybody can send packets with any job number.
  static constexpr std::size_t kPlaces = 64;
  struct Place {
    std::optional<std::uint16_t> job;
    std::optional<MessageKeys> up;
    std::optional<MessageKeys> down;
  };
  struct Digested {
    const MessageKeys* keys = nullptr;  // in places_
    std::span<const std::uint8_t> payload;
    PayloadDigest digest{};
  };

  Direction received_from(Endpoint from) const noexcept { return from == above_ ? sends_ : receives_; }
  Direction sent_to(Endpoint to) const noexcept { return to == above_ ? receives_ : sends_; }
  const std::optional<MessageKeys>& keys_of(std::uint16_t job, Direction direction) noexcept;
  bool is_genuine(const RxPacket& packet) noexcept;
  const PayloadDigest& digest_once(const MessageKeys& keys, std::span<const std::uint8_t> payload) noexcept;

  const JobKeys keys_;
  const Direction sends_;
  const Direction receives_;
  const std::optional<Endpoint> above_;
  std::array<Place, kPlaces> places_{};
  Digested last_sent_;
  std::uint64_t tx_errors_ = 0;
  mutable IoCounters counters_;  // the inner counters plus the ones above, merged by counters()
};

}  // namespace thc::io
