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

 private:
  std::unique_ptr<PacketIo> inner_;
};

}  // namespace thc::io
