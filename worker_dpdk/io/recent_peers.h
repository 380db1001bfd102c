#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "io/packet_io.h"

namespace thc::io {

/// Addresses that sent something lately, so they drain their datagrams. If two share a place, the later one stays.
class RecentPeers {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  void note(Endpoint peer, TimePoint now) noexcept { place_of(peer) = {peer, now}; }

  bool heard_since(Endpoint peer, TimePoint since) const noexcept {
    const Entry& entry = const_cast<RecentPeers*>(this)->place_of(peer);
    return entry.peer == peer && entry.heard_at >= since;
  }

 private:
  static constexpr std::size_t kPlaces = 1024;  // a power of two

  struct Entry {
    Endpoint peer;
    TimePoint heard_at{};
  };

  Entry& place_of(Endpoint peer) noexcept { return entries_[hash_of(peer) % kPlaces]; }

  std::array<Entry, kPlaces> entries_{};
};

}  // namespace thc::io
