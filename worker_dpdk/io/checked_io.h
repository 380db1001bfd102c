// Checksums of the datagrams of jobs without a key, around any PacketIo: what was damaged on the way is dropped before
// anything looks at it, and so repeated (docs/contributors/protocol.md, "Checksums"). In a job with a key the tag does
// it (authenticated_io.h).
#pragma once

#include "io/forwarding_io.h"
#include "thc/checksum.h"

namespace thc::io {

class CheckedIo final : public ForwardingIo {
 public:
  using ForwardingIo::ForwardingIo;

  /// Hands on what has a right checksum, or none. Others are counted as rx_damaged.
  std::size_t receive(std::span<RxPacket> packets) noexcept override;
  using PacketIo::send;
  /// Puts the checksum into a header with the flag, and tells by that of CHALLENGE that it can. `header` must begin
  /// with the whole wire header; only it or `payload` may have what follows that. A payload that is sent several times
  /// in a row before flush(), a result for all workers, is read once.
  bool send(Endpoint to, std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload,
            std::span<const std::uint8_t> trailer) noexcept override;
  void flush() noexcept override;
  const IoCounters& counters() const noexcept override;

 private:
  struct Read {
    std::span<const std::uint8_t> payload;
    ChecksumLanes lanes{};
  };

  const ChecksumLanes& read_once(std::span<const std::uint8_t> payload) noexcept;

  Read last_sent_;
  std::uint64_t rx_damaged_ = 0;
  std::uint64_t rx_damaged_bytes_ = 0;
  mutable IoCounters counters_;  // the inner ones and the above, put together when somebody asks
};

}  // namespace thc::io
