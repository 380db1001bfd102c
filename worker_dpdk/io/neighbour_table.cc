#include "io/neighbour_table.h"

#include <algorithm>
#include <tuple>

namespace thc::io {

Neighbour* NeighbourTable::find(std::uint32_t ip) noexcept {
  if (ip == 0) {
    return nullptr;
  }
  for (Neighbour& entry : set_of(ip)) {
    if (entry.ip == ip) {
      entry.last_used = ++uses_;
      return &entry;
    }
  }
  return nullptr;
}

Neighbour* NeighbourTable::find_or_add(std::uint32_t ip) noexcept {
  Neighbour* known = find(ip);
  if (known != nullptr || ip == 0) {
    return known;
  }
  // Free entries have last_used 0.
  Neighbour& oldest = *std::ranges::min_element(
      set_of(ip), {}, [](const Neighbour& entry) { return std::tuple(entry.fixed, entry.last_used); });
  if (oldest.fixed) {
    return nullptr;
  }
  oldest = {.ip = ip, .last_used = ++uses_};
  return &oldest;
}

}  // namespace thc::io
