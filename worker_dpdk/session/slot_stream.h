// The packets of one stage to one server: numbered in submission order, one slot each, at most one in flight per slot.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "session/operation.h"

namespace thc {

/// A packet without a result. Packet number k of S slots is in slot first + k mod S, round k div S + 1.
struct InFlight {
  Operation* operation = nullptr;  ///< null: the slot is free
  std::uint32_t slot = 0;
  std::uint32_t round = 0;  ///< of the packet in flight, or of the last one that was
  std::uint32_t chunk = 0;
  std::uint32_t bytes = 0;
  bool unsent = false;  ///< the back end had no room or the shard was lost: send as soon as possible
  std::uint8_t retransmissions = 0;
  TimePoint first_sent_at{};
  TimePoint sent_at{};
  std::uint64_t seen_workers = 0;  ///< bitmap of the last incomplete notice; 0: none
  std::uint64_t seen_racks = 0;    ///< likewise of racks_incomplete
  std::uint8_t racks = 0;          ///< how many there are, of the last racks_incomplete; 0: none

  bool is_known_to_have_arrived() const noexcept { return seen_workers != 0 || racks != 0; }
};

class SlotStream {
 public:
  explicit SlotStream(Stage stage) noexcept : stage_(stage) {}

  Stage stage() const noexcept { return stage_; }

  /// Called once, when the server has said how many slots there are, and what payload_count must be a multiple of.
  void open(std::uint32_t first_slot, std::uint32_t slots, std::size_t count_multiple = 1);

  void enqueue(std::shared_ptr<Operation> operation);

  /// Takes the next packet into its slot; null when no packet waits or an earlier one is in that slot.
  InFlight* take_next(TimePoint now) noexcept;
  struct Next {
    std::uint32_t slot;
    std::uint32_t bytes;  ///< header and payload
  };
  /// What take_next would take; nothing likewise.
  std::optional<Next> next() const noexcept;

  /// The state of that slot; null when it is not one of this stream.
  InFlight* find(std::uint32_t slot) noexcept;

  /// Frees the slot, whose chunk has been stored. Returns the operation when that was its last one.
  std::shared_ptr<Operation> release(InFlight& packet) noexcept;
  /// Frees all slots and returns all operations.
  std::deque<std::shared_ptr<Operation>> abandon() noexcept;

  const std::deque<std::shared_ptr<Operation>>& operations() const noexcept { return operations_; }
  /// Calls visit(InFlight&) for every packet in flight, lowest number first. `visit` may release it.
  template <typename Visit>
  void for_each_in_flight(Visit visit) {
    std::size_t index = oldest_index();
    for (std::uint64_t number = oldest_; number != next_; ++number) {
      InFlight& packet = packets_[index];
      index = index + 1 == packets_.size() ? 0 : index + 1;
      if (packet.operation != nullptr) {
        visit(packet);
      }
    }
  }
  /// Packet with the lowest number that has no result; null when none is in flight.
  const InFlight* oldest() const noexcept { return oldest_ == next_ ? nullptr : &packets_[oldest_index()]; }

 private:
  std::size_t oldest_index() const noexcept { return oldest_ == next_ ? 0 : oldest_ % packets_.size(); }

  Stage stage_;
  std::uint64_t next_ = 0;    ///< number of the next packet
  std::uint64_t oldest_ = 0;  ///< lowest number in flight; next_ when none is. next_ - oldest_ <= packets_.size()
  std::uint32_t first_slot_ = 0;
  std::size_t count_multiple_ = 1;
  std::vector<InFlight> packets_;                      ///< by slot - first_slot_
  std::deque<std::shared_ptr<Operation>> operations_;  ///< in submission order; the first `sending_` are sent
  std::size_t sending_ = 0;
};

}  // namespace thc
