#pragma once

#include <memory>
#include <utility>

#include "io/packet_io.h"

namespace thc::io {

class ForwardingIo : public PacketIo {
 public:
  explicit ForwardingIo(std::unique_ptr<PacketIo> inner) : inner_(std::move(inner)) {}

  void flush() noexcept override { inner_->flush(); }
  void wait(std::chrono::microseconds timeout) noexcept override { inner_->wait(timeout); }
  void wake() noexcept override { inner_->wake(); }
  Endpoint local() const noexcept override { return inner_->local(); }
  std::size_t max_datagram_bytes(Endpoint to) const noexcept override { return inner_->max_datagram_bytes(to); }
  std::size_t common_datagram_bytes(Endpoint to) const noexcept override { return inner_->common_datagram_bytes(to); }
  bool is_own_host(Endpoint to) const noexcept override { return inner_->is_own_host(to); }
  Endpoint simplify(Endpoint peer) const noexcept override { return inner_->simplify(peer); }
  std::size_t receive_buffer_bytes() const noexcept override { return inner_->receive_buffer_bytes(); }
  const IoCounters& counters() const noexcept override { return inner_->counters(); }

 protected:
  PacketIo& inner() const noexcept { return *inner_; }

  template <typename Accept>
  std::size_t receive_if(std::span<RxPacket> packets, Accept accept) noexcept {
    std::size_t kept = 0;
    for (const RxPacket& packet : packets.first(inner_->receive(packets))) {
      if (accept(packet)) {
        packets[kept++] = packet;
      } else {
        ++rejected_;
        rejected_bytes_ += packet.size_bytes;
      }
    }
    return kept;
  }
  /// `count`: of the packets that receive_if() rejected.
  IoCounters counters_without(std::uint64_t IoCounters::* count) const noexcept {
    IoCounters counters = inner_->counters();
    counters.rx_packets -= rejected_;
    counters.rx_bytes -= rejected_bytes_;
    counters.*count = rejected_;
    return counters;
  }

 private:
  std::unique_ptr<PacketIo> inner_;
  std::uint64_t rejected_ = 0;
  std::uint64_t rejected_bytes_ = 0;
};

}  // namespace thc::io
