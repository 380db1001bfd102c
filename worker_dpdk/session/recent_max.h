#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace thc {

/// The largest of the last `Block` to 2 * `Block` values.
template <typename Value, std::uint32_t Block>
class RecentMax {
 public:
  void add(Value value) noexcept { current_ = std::max(current_, value); }
  /// Call for every value that counts, added or not.
  void count() noexcept {
    if (++counted_ == Block) {
      counted_ = 0;
      previous_ = std::exchange(current_, Value{});
    }
  }
  Value get() const noexcept { return std::max(current_, previous_); }

 private:
  Value current_{};
  Value previous_{};
  std::uint32_t counted_ = 0;
};

}  // namespace thc
