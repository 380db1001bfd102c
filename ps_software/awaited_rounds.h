#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace thc::ps {

class AwaitedRounds {
 public:
  /// Allocates. `slots`: of this shard.
  explicit AwaitedRounds(std::uint32_t slots) : rounds_(2 * std::size_t{slots}) {}

  static std::size_t memory_bytes(std::uint32_t slots) noexcept { return 2 * sizeof(Round) * slots; }

  /// From now on the round awaits results; the one before last no longer does.
  void sent(std::uint32_t slot, std::uint32_t round) noexcept { at(slot, round) = {.round = round, .sent = true}; }
  void asked(std::uint32_t slot, std::uint32_t round, std::uint8_t worker) noexcept {
    at(slot, round).asked |= std::uint64_t{1} << worker;
  }
  /// Returns and clears the bitmap of waiting workers. `final`: a result, which all workers get at first.
  std::uint64_t take_waiting(std::uint32_t slot, std::uint32_t round, bool final) noexcept {
    Round& state = at(slot, round);
    if (!state.sent || state.round != round) return 0;
    const std::uint64_t asked = std::exchange(state.asked, 0);
    return final && !std::exchange(state.passed, true) ? ~std::uint64_t{0} : asked;
  }
  void reset() noexcept { rounds_.assign(rounds_.size(), {}); }

 private:
  struct Round {
    std::uint64_t asked = 0;  ///< workers that repeated since the root last answered
    std::uint32_t round = 0;
    bool sent = false;    ///< the rack's part of this round
    bool passed = false;  ///< all workers got the result
  };
  Round& at(std::uint32_t slot, std::uint32_t round) noexcept { return rounds_[2 * std::size_t{slot} + (round & 1)]; }

  std::vector<Round> rounds_;  ///< two per slot, indexed by the round's lowest bit
};

}  // namespace thc::ps
