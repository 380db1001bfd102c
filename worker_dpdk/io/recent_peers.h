#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "io/packet_io.h"

namespace thc::io {

/// Addresses that sent something lately, so they drain their datagrams. If three share a place, the oldest leaves.
class RecentPeers {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  void note(Endpoint peer, TimePoint now) noexcept {
    auto& [first, second] = places_[place_of(peer)];
    const bool is_first = first.peer == peer || (second.peer != peer && first.heard_at <= second.heard_at);
    (is_first ? first : second) = {peer, now};
  }

  bool heard_since(Endpoint peer, TimePoint since) const noexcept {
    return std::ranges::any_of(places_[place_of(peer)],
                               [&](const Entry& entry) { return entry.peer == peer && entry.heard_at >= since; });
  }

 private:
  static constexpr std::size_t kPlaces = 1024;  // a power of two

  struct Entry {
    Endpoint peer;
    TimePoint heard_at{};
  };

  static std::size_t place_of(Endpoint peer) noexcept { return hash_of(peer) % kPlaces; }

  std::array<std::array<Entry, 2>, kPlaces> places_{};
};

}  // namespace thc::io
