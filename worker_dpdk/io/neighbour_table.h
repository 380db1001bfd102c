// Who is behind which MAC address and port. Fixed size, no allocation after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "io/frame.h"

namespace thc::io {

struct Neighbour {
  std::uint32_t ip = 0;  ///< 0: free entry
  std::uint16_t port_index = 0;
  bool resolved = false;           ///< `frame` is ready to use
  bool fixed = false;              ///< configured; never changed by what arrives
  std::uint64_t next_request = 0;  ///< clock ticks before which no further ARP request is sent
  UdpFrameHeader frame{};          ///< template of frames to it
};

class NeighbourTable {
 public:
  NeighbourTable() : entries_(kEntries) {}

  /// The entry of `ip`, or nullptr.
  Neighbour* find(std::uint32_t ip) noexcept;

  /// The entry of `ip`, made when it is new; nullptr when the table is full.
  Neighbour* find_or_add(std::uint32_t ip) noexcept;

 private:
  static constexpr std::size_t kEntries = 1024;  // power of two; filled to 3/4 at most, which keeps probing short
  static std::size_t home(std::uint32_t ip) noexcept { return (ip * 0x9e3779b1U) >> 22; }
  static_assert(kEntries == 1U << (32 - 22));

  std::vector<Neighbour> entries_;
  std::size_t used_ = 0;
};

}  // namespace thc::io
