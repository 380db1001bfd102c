// UDP datagrams in and out, in batches, without copies of payloads the caller keeps. Kernel UDP and DPDK implement it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace thc::io {

/// An IPv6 address, host byte order. IPv4 is ::ffff:a.b.c.d, as the kernel has it. A link-local address has the number
/// of its interface in the 32 bits before the last 64, which are zero on the wire.
struct IpAddress {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  constexpr IpAddress() noexcept = default;  ///< ::, all addresses of both families
  // NOLINTNEXTLINE(google-explicit-constructor): an IPv4 address is one
  constexpr IpAddress(std::uint32_t ipv4) noexcept : low(kIpv4 | ipv4) {}
  constexpr IpAddress(std::uint64_t high_half, std::uint64_t low_half) noexcept : high(high_half), low(low_half) {}

  constexpr bool is_ipv4() const noexcept { return high == 0 && low >> 32 == kIpv4 >> 32; }
  constexpr std::uint32_t ipv4() const noexcept { return static_cast<std::uint32_t>(low); }
  constexpr bool is_any() const noexcept { return high == 0 && (low == 0 || low == kIpv4); }  ///< :: or 0.0.0.0
  constexpr bool is_link_local() const noexcept { return high >> 54 == 0xfe80U >> 6; }
  /// What limits per source count as one: an IPv6 host has all addresses of its /64.
  constexpr IpAddress source() const noexcept { return is_ipv4() ? *this : IpAddress(high, 0); }
  /// Whether a socket with this address sends to `other`.
  constexpr bool speaks_to(IpAddress other) const noexcept {
    return *this == IpAddress() || is_ipv4() == other.is_ipv4();
  }
  friend constexpr bool operator==(const IpAddress&, const IpAddress&) noexcept = default;

 private:
  static constexpr std::uint64_t kIpv4 = 0xffff'0000'0000;
};

struct Endpoint {
  IpAddress ip;
  std::uint16_t port = 0;
  /// The own address that this peer sends to, and that datagrams to it must leave from: a host may have several. ::,
  /// the kernel chooses. receive() fills it in for a server on all addresses (UdpConfig). It does not tell peers apart.
  IpAddress own_ip{};
  friend bool operator==(const Endpoint& a, const Endpoint& b) noexcept { return a.ip == b.ip && a.port == b.port; }
};

/// For tables of a fixed size.
inline std::uint32_t hash_of(const Endpoint& endpoint) noexcept {
  const std::uint64_t ip = endpoint.ip.high ^ endpoint.ip.low;
  const std::uint32_t key = static_cast<std::uint32_t>(ip ^ ip >> 32) * 0x9e3779b1U ^ endpoint.port * 0x85ebca6bU;
  return key >> 16 ^ key;
}

/// A received datagram's payload; valid until the next receive() on the same PacketIo.
struct RxPacket {
  const std::uint8_t* data;
  std::uint32_t size_bytes;
  Endpoint from;
  bool congested = false;  ///< its IP header has the mark of a full queue on the way (ECN: CE)
};

struct IoCounters {
  std::uint64_t rx_packets = 0;
  std::uint64_t rx_bytes = 0;
  std::uint64_t rx_malformed = 0;  ///< broken Ethernet/IPv4/UDP frames and fragments (DPDK), truncated datagrams (UDP)
  std::uint64_t rx_unauthenticated = 0;  ///< without the tag of the job's key (authenticated_io.h)
  std::uint64_t rx_damaged = 0;          ///< with a wrong checksum (checked_io.h)
  std::uint64_t rx_handed_over = 0;      ///< frames of other threads, given to them (DPDK)
  std::uint64_t rx_handoff_full = 0;     ///< frames of other threads, and ARP for them, dropped: their ring was full
  std::uint64_t rx_other = 0;            ///< sound frames that are not for us: other protocol, address or port (DPDK)
  std::uint64_t tx_packets = 0;
  std::uint64_t tx_bytes = 0;
  std::uint64_t tx_no_buffer = 0;     ///< datagrams dropped for want of a buffer or queue space
  std::uint64_t tx_errors = 0;        ///< datagrams the kernel or device refused
  std::uint64_t tx_no_neighbour = 0;  ///< datagrams whose next hop's MAC is not known yet (DPDK)
};

inline constexpr std::size_t kIpUdpHeaderBytes = 28;    ///< IPv4 without options, and UDP
inline constexpr std::size_t kIpv6UdpHeaderBytes = 48;  ///< IPv6 without extensions, and UDP
inline constexpr std::size_t kMaxUdpPayloadBytes = 65535 - kIpUdpHeaderBytes;

/// The ECN field of an IP header's second byte (RFC 3168). All that is sent says that both ends take marks, which full
/// queues then give instead of dropping.
inline constexpr std::uint8_t kEcnMask = 3;
inline constexpr std::uint8_t kEcnCapable = 2;     ///< ECT(0)
inline constexpr std::uint8_t kEcnCongestion = 3;  ///< CE

/// One endpoint's packets. Used by one thread. Nothing here throws, logs or allocates after construction.
class PacketIo {
 public:
  virtual ~PacketIo() = default;
  PacketIo(const PacketIo&) = delete;
  PacketIo& operator=(const PacketIo&) = delete;

  /// Takes up to packets.size() datagrams that are there now; returns how many. Invalidates earlier ones.
  virtual std::size_t receive(std::span<RxPacket> packets) noexcept = 0;

  /// Queues one datagram of header + payload + trailer. `header` (at most kMaxHeaderBytes) and `trailer` (at most
  /// kMaxTrailerBytes) are copied; `payload` must stay unchanged until flush(). May flush earlier by itself. False (and
  /// a counter) when it had to be dropped.
  virtual bool send(Endpoint to, std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload,
                    std::span<const std::uint8_t> trailer) noexcept = 0;
  bool send(Endpoint to, std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload) noexcept {
    return send(to, header, payload, {});
  }

  /// Hands everything queued to the network; payloads may change afterwards.
  virtual void flush() noexcept = 0;

  /// Sleeps until a datagram may be there, wake() is called, or the time is over. A polling back end may return at
  /// once.
  virtual void wait(std::chrono::microseconds timeout) noexcept = 0;

  /// Ends a wait() from any thread.
  virtual void wake() noexcept = 0;

  /// Own address (port resolved when 0 was asked for).
  virtual Endpoint local() const noexcept = 0;

  /// Largest header + payload that reaches `to` unfragmented.
  virtual std::size_t max_datagram_bytes(Endpoint to) const noexcept = 0;

  /// The same, as far as this host knows, for others that reach `to` over its network: where `to` is this host itself,
  /// at an address that others have a way to, what its interface sends, although the own way takes more.
  virtual std::size_t common_datagram_bytes(Endpoint to) const noexcept { return max_datagram_bytes(to); }

  /// Whether `to` is this host itself: what goes there passes no interface, so no queue that others share.
  virtual bool is_own_host(Endpoint /*to*/) const noexcept { return false; }

  /// The same peer, without own_ip where the kernel sends to it from that address anyway, which saves work for each
  /// datagram. For a peer that much is sent to; a route may change, so who asks is answered at RxPacket::from.
  virtual Endpoint simplify(Endpoint peer) const noexcept { return peer; }

  /// About how many payload bytes can arrive between two receive() calls before some are lost.
  virtual std::size_t receive_buffer_bytes() const noexcept = 0;

  virtual const IoCounters& counters() const noexcept = 0;

  static constexpr std::size_t kMaxHeaderBytes = 64;
  static constexpr std::size_t kMaxTrailerBytes = 8;

 protected:
  PacketIo() = default;
};

}  // namespace thc::io
