// A packet that came, and the way out for all that a shard answers.
#pragma once

#include <cstdint>
#include <span>

#include "counters.h"
#include "io/packet_io.h"
#include "job.h"
#include "replies.h"
#include "thc/wire_layout.h"

namespace thc::ps {

/// With a complete header of our version.
struct Packet {
  const wire::Header header;
  std::span<const std::uint8_t> datagram;
  io::Endpoint from;
  bool congested;            // marked by a queue on the way
  Job* job;                  // nullptr: of no job
  PacketCounters& counters;  // of the job, or strays

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
  /// Of what is sent now; 0 marks results that were never queued.
  std::uint64_t flush_number() const noexcept { return flush_number_; }

  io::PacketIo& io;

 private:
  std::uint64_t flush_number_ = 1;
};

}  // namespace thc::ps
