// Who is behind which MAC address and port. Fixed size, no allocation after construction.
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
  bool fixed = false;              ///< configured; never changed by what arrives
  std::uint64_t next_request = 0;  ///< clock ticks before which no further ARP request is sent
  std::uint64_t last_used = 0;     ///< NeighbourTable's count of look-ups at the last one
  UdpFrameHeader frame{};          ///< template of frames to it
};

/// Anybody on the network can make entries, so a new one takes the place of the one that was not used for longest,
/// among the few that its address may be in. Who talks to us keeps its entry.
class NeighbourTable {
 public:
  NeighbourTable() : entries_(kSets * kWays) {}

  /// The entry of `ip`, or nullptr. Valid until the next find_or_add().
  Neighbour* find(std::uint32_t ip) noexcept;

  /// The entry of `ip`, made when it is new; nullptr for 0.0.0.0 and when all entries it could have are fixed.
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
