// Which slots of a server a polling thread has. Servers share them out among their shards, and so do sessions: a
// shard's slots are all one thread's.
#pragma once

#include <cstdint>

namespace thc {

/// Slot s is in shard s mod `shards`, and shard i is polling thread i mod `threads`'s.
struct SlotShare {
  std::uint32_t thread = 0;
  std::uint32_t threads = 1;
  std::uint32_t shards = 1;

  bool has_shard(std::uint32_t shard) const noexcept { return shard % threads == thread; }
  bool has(std::uint32_t slot) const noexcept { return has_shard(slot % shards); }
  /// Own shards; 0 for threads that the server has no shard for.
  std::uint32_t own_shards() const noexcept { return own_shards_below(shards); }
  /// Own slots below `slot`.
  std::uint32_t count_below(std::uint32_t slot) const noexcept {
    return slot / shards * own_shards() + own_shards_below(slot % shards);
  }

 private:
  std::uint32_t own_shards_below(std::uint32_t shard) const noexcept {
    return shard <= thread ? 0 : (shard - thread - 1) / threads + 1;
  }
};

}  // namespace thc
