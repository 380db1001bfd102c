// If many workers ask again, a burst of results overflows a queue on the path, so results are paced
// (docs/contributors/protocol.md, "Congestion").
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <span>

#include "job.h"
#include "thc/wire_layout.h"

namespace thc::ps {

class ResultPacer {
 public:
  /// `workers` is a bitmap.
  struct Waiting {
    Job* job;
    std::uint16_t job_id;
    std::uint32_t epoch;
    std::uint32_t local_slot;
    std::uint64_t workers;
    wire::Header header;
    std::span<const std::uint8_t> result;
  };

  bool is_paced() const noexcept { return gap_ != Gap::zero(); }
  bool empty() const noexcept { return count_ == 0; }
  bool full() const noexcept { return count_ == waiting_.size(); }
  /// Must not be full.
  void push(const Waiting& waiting) noexcept;
  bool has(const Job& job, std::uint32_t local_slot, std::uint32_t round, std::uint8_t worker) const noexcept;
  /// Call before the memory of that slot and round changes.
  void forget(const Job& job, std::uint32_t local_slot, std::uint32_t round) noexcept;
  /// TimePoint::max() if empty.
  TimePoint next() const noexcept { return empty() ? TimePoint::max() : next_; }
  /// Returns the first entry if one of its workers is due, else null.
  Waiting* due(TimePoint now) noexcept;
  void served(std::uint8_t worker) noexcept;
  void sent(TimePoint now) noexcept;
  void asked_again() noexcept { ++asked_again_; }

 private:
  using Gap = std::chrono::nanoseconds;
  void adapt() noexcept;
  Waiting& at(std::size_t number) noexcept { return waiting_[(first_ + number) % waiting_.size()]; }
  const Waiting& at(std::size_t number) const noexcept { return waiting_[(first_ + number) % waiting_.size()]; }

  Gap gap_{0};  ///< between two results; 0: unpaced
  TimePoint next_{};
  std::array<Waiting, 128> waiting_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  // Since the last adaptation of the gap.
  std::uint32_t sent_ = 0;
  std::uint32_t asked_again_ = 0;
  Gap busy_{0};
  TimePoint sent_at_{};
};

}  // namespace thc::ps
