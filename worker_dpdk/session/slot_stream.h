// The packets of one stage to one server, numbered in submission order; each slot has at most one in flight.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "session/operation.h"

namespace thc {

struct OperationPart {
  std::shared_ptr<Operation> operation;
  TimePoint deadline;
  std::uint64_t first_number = 0;  ///< of its packets
  std::uint64_t end = 0;           ///< after its last packet
  std::uint64_t remaining = 0;     ///< packets without a result
};

/// Packet number k of S slots is in slot first + k mod S, round k div S + 1.
struct InFlight {
  OperationPart* part = nullptr;  ///< null: the slot is free
  std::uint32_t slot = 0;
  std::uint32_t round = 0;  ///< of the packet in flight, or of the latest
  std::uint32_t chunk = 0;
  std::uint32_t bytes = 0;
  bool unsent = false;  ///< lost, or the back end had no room: send as soon as possible
  std::uint8_t retransmissions = 0;
  TimePoint first_sent_at{};
  TimePoint sent_at{};
  std::uint64_t number = 0;              ///< packets that the stream took before
  std::uint64_t first_transmission = 0;  ///< number within its shard and stage, from 1 (LossDetector)
  std::uint64_t transmission = 0;        ///< the last one, or the notice of arrival
  TimePoint awaited_since{};             ///< time of `transmission`
  std::uint64_t first_mark = 0;          ///< of the first transmission (congestion::Control)
  std::uint64_t mark = 0;                ///< of the last transmission
  TimePoint noticed_at{};                ///< last notice that it waits for other workers
  std::uint64_t seen_workers = 0;        ///< bitmap of the last incomplete notice; 0: none
  std::uint64_t seen_racks = 0;          ///< likewise of racks_incomplete
  std::uint8_t racks = 0;                ///< number in the last racks_incomplete; 0: none

  bool is_known_to_have_arrived() const noexcept { return seen_workers != 0 || racks != 0; }
  /// How long repeats got no answer, without time in which this thread did not run.
  Duration unanswered_for() const noexcept {
    const TimePoint answered_at = std::max(first_sent_at, noticed_at);
    return sent_at > answered_at ? elapsed(answered_at, sent_at) : Duration::zero();
  }
  Operation& operation() const noexcept { return *part->operation; }
};

class SlotStream {
 public:
  using Operations = std::deque<std::shared_ptr<Operation>>;

  explicit SlotStream(Stage stage) noexcept : stage_(stage) {}

  Stage stage() const noexcept { return stage_; }

  /// Call once. `count_multiple` divides payload_count.
  void open(std::uint32_t first_slot, std::uint32_t slots, std::size_t count_multiple = 1);

  /// `operation` must have packets.
  void enqueue(std::shared_ptr<Operation> operation, TimePoint deadline);

  /// Returns null if no packet waits, or if its slot is occupied.
  InFlight* take_next(TimePoint now) noexcept;
  struct Next {
    std::uint32_t slot;
    std::uint32_t bytes;  ///< header and payload
  };
  /// The next take_next(), if any.
  std::optional<Next> next() const noexcept;

  /// Returns null for a slot of another stream.
  InFlight* find(std::uint32_t slot) noexcept;

  /// Frees the slot of a stored chunk. Returns the operation after its last chunk.
  std::shared_ptr<Operation> release(InFlight& packet) noexcept;
  Operations abandon();
  /// The first unfinished operation, or null.
  const OperationPart* first() const noexcept { return parts_.empty() ? nullptr : parts_.front().get(); }
  /// Lowest number first. `visit` may release the packet.
  template <typename Visit>
  void for_each_in_flight(Visit visit) {
    for_each_in_flight_below(next_, visit);
  }
  template <typename Visit>
  void for_each_in_flight_below(std::uint64_t end, Visit visit) {
    std::size_t index = oldest_index();
    for (std::uint64_t count = oldest_; count < end; ++count) {
      InFlight& packet = packets_[index];
      index = index + 1 == packets_.size() ? 0 : index + 1;
      if (packet.part != nullptr) {
        visit(packet);
      }
    }
  }
  std::size_t in_flight() const noexcept { return in_flight_; }
  std::size_t capacity() const noexcept { return packets_.size(); }
  /// Null if nothing is in flight.
  const InFlight* oldest() const noexcept { return oldest_ == next_ ? nullptr : &packets_[oldest_index()]; }

 private:
  std::size_t oldest_index() const noexcept { return oldest_ == next_ ? 0 : oldest_ % packets_.size(); }
  void add(OperationPart& part);
  std::size_t next_chunk(const OperationPart& part) const noexcept { return next_ - part.first_number; }

  Stage stage_;
  std::uint32_t first_slot_ = 0;
  std::size_t count_multiple_ = 1;
  std::uint64_t numbered_ = 0;  ///< packets
  std::uint64_t next_ = 0;      ///< packets taken
  std::uint64_t oldest_ = 0;    ///< packets before the first in flight; next_ if none is
  std::size_t in_flight_ = 0;
  std::vector<InFlight> packets_;                     ///< by slot; empty until open()
  std::deque<std::unique_ptr<OperationPart>> parts_;  ///< in submission order; the first `sending_` are sent
  std::size_t sending_ = 0;
};

}  // namespace thc
