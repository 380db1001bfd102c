#include "io/neighbour_table.h"

namespace thc::io {

Neighbour* NeighbourTable::find(std::uint32_t ip) noexcept {
  for (std::size_t i = home(ip); entries_[i].ip != 0; i = (i + 1) % kEntries) {
    if (entries_[i].ip == ip) {
      return &entries_[i];
    }
  }
  return nullptr;
}

Neighbour* NeighbourTable::find_or_add(std::uint32_t ip) noexcept {
  std::size_t i = home(ip);
  for (; entries_[i].ip != 0; i = (i + 1) % kEntries) {
    if (entries_[i].ip == ip) {
      return &entries_[i];
    }
  }
  if (ip == 0 || used_ >= kEntries / 4 * 3) {
    return nullptr;
  }
  ++used_;
  entries_[i].ip = ip;
  return &entries_[i];
}

}  // namespace thc::io
