#include "session/slot_stream.h"

#include <algorithm>
#include <utility>

#include "thc/wire_layout.h"

namespace thc {

void SlotStream::open(std::uint32_t first_slot, std::uint32_t slots, std::size_t count_multiple) {
  first_slot_ = first_slot;
  count_multiple_ = count_multiple;
  packets_.reserve(slots);
  for (std::uint32_t slot = first_slot; slot < first_slot + slots; ++slot) {
    packets_.push_back(InFlight{.slot = slot});
  }
  for (const std::unique_ptr<OperationPart>& part : parts_) {
    add(*part);
  }
}

void SlotStream::enqueue(std::shared_ptr<Operation> operation, TimePoint deadline) {
  parts_.push_back(
      std::make_unique<OperationPart>(OperationPart{.operation = std::move(operation), .deadline = deadline}));
  if (!packets_.empty()) {
    add(*parts_.back());
  }
}

void SlotStream::add(OperationPart& part) {
  part.first_number = numbered_;
  part.remaining = part.operation->chunks();
  part.end = numbered_ += part.remaining;
  part.operation->pad(count_multiple_);
}

std::optional<SlotStream::Next> SlotStream::next() const noexcept {
  if (sending_ == parts_.size() || packets_.empty()) {
    return std::nullopt;
  }
  const InFlight& packet = packets_[next_ % packets_.size()];
  if (packet.part != nullptr) {
    return std::nullopt;
  }
  const OperationPart& part = *parts_[sending_];
  const std::size_t payload_bytes = part.operation->chunk_payload(next_chunk(part)).size();
  return Next{.slot = packet.slot, .bytes = static_cast<std::uint32_t>(sizeof(wire::Header) + payload_bytes)};
}

InFlight* SlotStream::take_next(TimePoint now) noexcept {
  const std::optional<Next> taken = next();
  if (!taken) {
    return nullptr;
  }
  InFlight& packet = packets_[next_ % packets_.size()];
  OperationPart& part = *parts_[sending_];
  packet = {.part = &part,
            .slot = taken->slot,
            .round = static_cast<std::uint32_t>(next_ / packets_.size() + 1),
            .chunk = static_cast<std::uint32_t>(next_chunk(part)),
            .bytes = taken->bytes,
            .first_sent_at = now,
            .sent_at = now,
            .number = next_};
  ++next_;
  ++in_flight_;
  if (next_ == part.end) {
    ++sending_;
  }
  return &packet;
}

InFlight* SlotStream::find(std::uint32_t slot) noexcept {
  const std::uint32_t offset = slot - first_slot_;  // wraps to a large number below first_slot_
  return offset < packets_.size() ? &packets_[offset] : nullptr;
}

std::shared_ptr<Operation> SlotStream::release(InFlight& packet) noexcept {
  OperationPart* part = std::exchange(packet.part, nullptr);
  --in_flight_;
  while (oldest_ != next_ && packets_[oldest_ % packets_.size()].part == nullptr) {
    ++oldest_;
  }
  if (--part->remaining != 0) {
    return nullptr;
  }
  // Few operations are in flight, and most end in order.
  const auto position =
      std::find_if(parts_.begin(), parts_.end(), [part](const auto& candidate) { return candidate.get() == part; });
  std::shared_ptr<Operation> done = std::move(part->operation);
  parts_.erase(position);
  --sending_;
  return done;
}

SlotStream::Operations SlotStream::abandon() {
  for (InFlight& packet : packets_) {
    packet.part = nullptr;
  }
  oldest_ = next_;
  in_flight_ = 0;
  sending_ = 0;
  Operations operations;
  for (const std::unique_ptr<OperationPart>& part : std::exchange(parts_, {})) {
    operations.push_back(std::move(part->operation));
  }
  return operations;
}

}  // namespace thc
