// Which rounds the slots of a stage may have in one epoch: so few that none comes twice.
#pragma once

#include <cstdint>
#include <optional>

namespace thc::ps {

class RoundRange {
 public:
  /// Slots of a stage are a lap or two apart; a worker that comes back may ask for rounds that are further behind.
  static constexpr std::uint32_t kBehind = 1U << 20;

  /// Whether `round`, which a slot begins, is in the range. The first one since forget() makes it: `size` rounds from
  /// there on, and kBehind before. Slots only go on to later rounds, so within the range none has one twice.
  bool takes(std::uint32_t round, std::uint32_t size) noexcept {
    if (!first_) first_ = round;
    return round - *first_ + kBehind < size + kBehind;
  }
  void forget() noexcept { first_.reset(); }

 private:
  std::optional<std::uint32_t> first_;
};

}  // namespace thc::ps
