// When results go. All workers get that of a slot at once, unless many ask for theirs again: then a burst drowns in a
// queue on the way (docs/contributors/protocol.md, "Congestion").
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
  /// A result, and who is to get it: job workers by bit.
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
  /// Whether there is no place for one more.
  bool full() const noexcept { return count_ == waiting_.size(); }
  /// Not when full.
  void push(const Waiting& waiting) noexcept;
  /// Whether this worker's result of that round waits here.
  bool has(const Job& job, std::uint32_t local_slot, std::uint32_t round, std::uint8_t worker) const noexcept;
  /// The memory of that version of a slot is about to change.
  void forget(const Job& job, std::uint32_t local_slot, std::uint32_t round) noexcept;

  /// The end of time where nothing waits.
  TimePoint next() const noexcept { return empty() ? TimePoint::max() : next_; }
  /// The first one, one of whose workers is due now, or null.
  Waiting* due(TimePoint now) noexcept;
  /// A worker of the first one has been served.
  void served(std::uint8_t worker) noexcept;

  /// Of every result sent.
  void sent(TimePoint now) noexcept;
  /// A worker has asked for a result again that had been sent.
  void asked_again() noexcept { ++asked_again_; }

 private:
  using Gap = std::chrono::nanoseconds;
  void adapt() noexcept;
  Waiting& at(std::size_t number) noexcept { return waiting_[(first_ + number) % waiting_.size()]; }
  const Waiting& at(std::size_t number) const noexcept { return waiting_[(first_ + number) % waiting_.size()]; }

  Gap gap_{0};  ///< between two results; 0: they go at once
  TimePoint next_{};
  std::array<Waiting, 128> waiting_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  // Since the gap was adapted last.
  std::uint32_t sent_ = 0;
  std::uint32_t asked_again_ = 0;
  Gap busy_{0};
  TimePoint sent_at_{};
};

}  // namespace thc::ps
