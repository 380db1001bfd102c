#include "session/slot_stream.h"

#include <algorithm>
#include <utility>

#include "thc/wire_layout.h"

namespace thc {

void SlotStream::open(std::uint32_t first_slot, std::uint32_t slots, std::size_t count_multiple) {
  first_slot_ = first_slot;
  count_multiple_ = count_multiple;
  for (const auto& operation : operations_) {
    operation->pad(count_multiple);
  }
  packets_.assign(slots, InFlight{});
  for (std::uint32_t i = 0; i < slots; ++i) {
    packets_[i].slot = first_slot + i;
  }
}

void SlotStream::enqueue(std::shared_ptr<Operation> operation) {
  operation->pad(count_multiple_);
  operations_.push_back(std::move(operation));
}

std::optional<SlotStream::Next> SlotStream::next() const noexcept {
  if (sending_ == operations_.size() || packets_.empty()) {
    return std::nullopt;
  }
  const InFlight& packet = packets_[next_ % packets_.size()];
  if (packet.operation != nullptr) {
    return std::nullopt;
  }
  const Operation& operation = *operations_[sending_];
  const std::size_t payload_bytes = operation.chunk_payload(operation.sent()).size();
  return Next{.slot = packet.slot, .bytes = static_cast<std::uint32_t>(sizeof(wire::Header) + payload_bytes)};
}

InFlight* SlotStream::take_next(TimePoint now) noexcept {
  const std::optional<Next> taken = next();
  if (!taken) {
    return nullptr;
  }
  InFlight& packet = packets_[next_ % packets_.size()];
  Operation& operation = *operations_[sending_];
  packet = {.operation = &operation,
            .slot = taken->slot,
            .round = static_cast<std::uint32_t>(next_ / packets_.size() + 1),
            .chunk = static_cast<std::uint32_t>(operation.take_chunk()),
            .bytes = taken->bytes,
            .first_sent_at = now,
            .sent_at = now};
  ++next_;
  if (operation.sent() == operation.chunks()) {
    ++sending_;
  }
  return &packet;
}

InFlight* SlotStream::find(std::uint32_t slot) noexcept {
  const std::uint32_t index = slot - first_slot_;  // wraps to a large number below first_slot_
  return index < packets_.size() ? &packets_[index] : nullptr;
}

std::shared_ptr<Operation> SlotStream::release(InFlight& packet) noexcept {
  Operation* operation = std::exchange(packet.operation, nullptr);
  while (oldest_ != next_ && packets_[oldest_ % packets_.size()].operation == nullptr) {
    ++oldest_;
  }
  if (operation->remaining() != 0) {
    return nullptr;
  }
  // Few operations are in flight and most end in order.
  const auto position = std::find_if(operations_.begin(), operations_.end(),
                                     [operation](const auto& candidate) { return candidate.get() == operation; });
  std::shared_ptr<Operation> done = std::move(*position);
  operations_.erase(position);
  --sending_;
  return done;
}

std::deque<std::shared_ptr<Operation>> SlotStream::abandon() noexcept {
  for (InFlight& packet : packets_) {
    packet.operation = nullptr;
  }
  oldest_ = next_;
  sending_ = 0;
  return std::exchange(operations_, {});
}

}  // namespace thc
