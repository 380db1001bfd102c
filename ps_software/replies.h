#pragma once

#include <cstdint>
#include <span>

#include "counters.h"
#include "io/packet_io.h"
#include "job.h"
#include "thc/hello.h"
#include "thc/slot_pool.h"
#include "thc/wire_layout.h"

namespace thc::ps {

/// Header and short payload, sent as one copied piece.
template <typename Payload>
struct Message {
  wire::Header header;
  Payload payload;
};

using io::bytes_of;

wire::Header reply_header(const wire::Header& request, wire::MessageType type) noexcept;
wire::Header result_header(const wire::Header& request, const SlotReply& reply) noexcept;
wire::Header bare_header(const wire::Header& request, wire::MessageType type) noexcept;

Message<wire::ErrorPayload> make_error(const wire::Header& request, const Refusal& refusal) noexcept;
/// The payload is at most as long as the HELLO, against amplification.
Message<wire::ChallengePayload> make_challenge(const wire::Header& hello, std::uint64_t cookie) noexcept;

/// The header is complete and has this protocol version.
struct Packet {
  const wire::Header header;
  std::span<const std::uint8_t> datagram;
  io::Endpoint from;
  bool congested;            // a queue on the path marked it
  Job* job;                  // nullptr: no job
  PacketCounters& counters;  // the job's, or strays

  wire::MessageType type() const noexcept { return static_cast<wire::MessageType>(std::uint8_t{header.message_type}); }
};

class Outbox {
 public:
  /// `packet_io` outlives this.
  explicit Outbox(io::PacketIo& packet_io) : io(packet_io) {}

  void send_error(const Packet& packet, const Refusal& refusal) noexcept {
    io.send(packet.from, bytes_of(make_error(packet.header, refusal)), {});
    packet.counters.count(refusal.reason);
  }
  void flush() noexcept {
    io.flush();
    ++flush_number_;
  }
  /// 0 marks results that were never queued.
  std::uint64_t flush_number() const noexcept { return flush_number_; }

  io::PacketIo& io;

 private:
  std::uint64_t flush_number_ = 1;
};

}  // namespace thc::ps
