// Adds and checks the checksums of jobs without keys (docs/contributors/protocol.md, "Checksums").
#pragma once

#include "io/forwarding_io.h"
#include "thc/checksum.h"

namespace thc::io {

class CheckedIo final : public ForwardingIo {
 public:
  using ForwardingIo::ForwardingIo;
  std::size_t receive(std::span<RxPacket> packets) noexcept override;
  using PacketIo::send;
  /// Adds the checksum if the header has the flag, and sets the flag of CHALLENGE. `header` must begin with the wire
  /// header; only `header` or `payload` may have further bytes. Repeats of a payload before flush() reuse its checksum.
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
  mutable IoCounters counters_;  // the inner counters plus the ones above, merged by counters()
};

}  // namespace thc::io
