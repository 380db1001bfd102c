// A PacketIo in memory, for Shard tests: real sockets are tested with the program.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "io/packet_io.h"

namespace thc::ps {

class MemoryIo final : public io::PacketIo {
 public:
  struct Datagram {
    std::vector<std::uint8_t> bytes;
    io::Endpoint peer;
    bool congested = false;
  };

  /// Queues a datagram for the shard.
  void deliver(io::Endpoint from, std::vector<std::uint8_t> bytes, bool congested = false) {
    incoming_.push_back({std::move(bytes), from, congested});
  }

  /// Datagrams that the shard has flushed since the last call.
  std::vector<Datagram> take_sent() { return std::exchange(sent_, {}); }

  std::size_t receive(std::span<io::RxPacket> packets) noexcept override {
    current_.clear();
    while (current_.size() < packets.size() && !incoming_.empty()) {
      current_.push_back(std::move(incoming_.front()));
      incoming_.pop_front();
    }
    for (std::size_t i = 0; i < current_.size(); ++i) {
      // Exactly as large as the datagram, so that a sanitizer sees reads behind it.
      current_[i].bytes.shrink_to_fit();
      packets[i] = {current_[i].bytes.data(), static_cast<std::uint32_t>(current_[i].bytes.size()), current_[i].peer,
                    current_[i].congested};
    }
    return current_.size();
  }

  /// Reads the payload no earlier than at the flush, as real back ends do.
  bool send(io::Endpoint to, std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload,
            std::span<const std::uint8_t> trailer) noexcept override {
    queued_.push_back({{header.begin(), header.end()}, payload, {trailer.begin(), trailer.end()}, to});
    return true;
  }

  void flush() noexcept override {
    for (Queued& queued : queued_) {
      queued.header.insert(queued.header.end(), queued.payload.begin(), queued.payload.end());
      queued.header.insert(queued.header.end(), queued.trailer.begin(), queued.trailer.end());
      sent_.push_back({std::move(queued.header), queued.to});
    }
    queued_.clear();
  }

  void wait(std::chrono::microseconds) noexcept override {}
  void wake() noexcept override {}
  io::Endpoint local() const noexcept override { return {}; }
  std::size_t max_datagram_bytes(io::Endpoint to) const noexcept override {
    return narrow_way && narrow_way->first == to ? narrow_way->second : largest_datagram_bytes;
  }
  std::size_t receive_buffer_bytes() const noexcept override { return kReceiveBufferBytes; }
  const io::IoCounters& counters() const noexcept override { return counters_; }

  static constexpr std::size_t kMaxDatagramBytes = 9000;
  static constexpr std::size_t kReceiveBufferBytes = 1 << 20;

  std::size_t largest_datagram_bytes = kMaxDatagramBytes;
  std::optional<std::pair<io::Endpoint, std::size_t>> narrow_way{};  ///< to whom less goes, and how many bytes

 private:
  struct Queued {
    std::vector<std::uint8_t> header;
    std::span<const std::uint8_t> payload;
    std::vector<std::uint8_t> trailer;
    io::Endpoint to;
  };

  std::deque<Datagram> incoming_;
  std::vector<Datagram> current_;
  std::vector<Queued> queued_;
  std::vector<Datagram> sent_;
  io::IoCounters counters_;
};

}  // namespace thc::ps
