#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "io/frame.h"

namespace thc::io {

struct Neighbour {
  std::uint32_t ip = 0;  ///< 0: free entry
  std::uint16_t port_index = 0;
  bool resolved = false;           ///< `frame` is ready to use
  bool fixed = false;              ///< configured; received frames never change it
  std::uint64_t next_request = 0;  ///< clock ticks; no ARP request before
  std::uint64_t last_used = 0;     ///< NeighbourTable's count of look-ups at the latest one
  UdpFrameHeader frame{};          ///< template of frames to this neighbour
};

/// Set-associative, without allocation after construction. Anybody on the network can add entries, so a new entry
/// replaces the least recently used one in its set.
class NeighbourTable {
 public:
  NeighbourTable() : entries_(kSets * kWays) {}

  /// Valid until the next find_or_add().
  Neighbour* find(std::uint32_t ip) noexcept;
  /// Returns nullptr for 0.0.0.0, or if all entries of the set are fixed.
  Neighbour* find_or_add(std::uint32_t ip) noexcept;

 private:
  static constexpr std::size_t kSets = 128;
  static constexpr std::size_t kWays = 8;
  std::span<Neighbour, kWays> set_of(std::uint32_t ip) noexcept {
    const std::size_t set = (ip * 0x9e3779b1U) >> 25;
    return std::span<Neighbour, kWays>(&entries_[set * kWays], kWays);
  }
  static_assert(kSets == 1U << (32 - 25));

  std::vector<Neighbour> entries_;
  std::uint64_t uses_ = 0;
};

}  // namespace thc::io
