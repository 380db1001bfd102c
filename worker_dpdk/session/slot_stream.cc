#include "session/slot_stream.h"

#include <algorithm>
#include <utility>

#include "thc/wire_layout.h"

namespace thc {

SlotStream::Operations SlotStream::open(std::uint32_t first_slot, std::uint32_t slots, const SlotShare& share,
                                        std::size_t count_multiple) {
  first_slot_ = first_slot;
  slots_ = slots;
  share_ = share;
  count_multiple_ = count_multiple;
  packets_.reserve(share.count_below(first_slot + slots) - share.count_below(first_slot));
  for (std::uint32_t slot = first_slot; slot < first_slot + slots; ++slot) {
    if (share.has(slot)) {
      packets_.push_back(InFlight{.slot = slot});
    }
  }
  Operations without_packets;
  for (std::unique_ptr<OperationPart>& part : std::exchange(parts_, {})) {
    if (std::shared_ptr<Operation> operation = add(std::move(part)); operation != nullptr) {
      without_packets.push_back(std::move(operation));
    }
  }
  return without_packets;
}

std::shared_ptr<Operation> SlotStream::enqueue(std::shared_ptr<Operation> operation, TimePoint deadline) {
  auto part = std::make_unique<OperationPart>(OperationPart{.operation = std::move(operation), .deadline = deadline});
  if (slots_ == 0) {
    parts_.push_back(std::move(part));
    return nullptr;
  }
  return add(std::move(part));
}

std::shared_ptr<Operation> SlotStream::add(std::unique_ptr<OperationPart> part) {
  part->first_number = numbered_;
  numbered_ += part->operation->chunks();
  part->own_end = own_packets(numbered_);
  part->remaining = part->own_end - own_packets(part->first_number);
  if (part->own_end != own_packets(numbered_ - 1)) {  // the last packet is this thread's
    part->operation->pad(count_multiple_);
  }
  if (part->remaining == 0) {
    return std::move(part->operation);
  }
  parts_.push_back(std::move(part));
  return nullptr;
}

std::uint64_t SlotStream::own_packets(std::uint64_t count) const noexcept {
  const auto rest = static_cast<std::uint32_t>(count % slots_);
  return count / slots_ * packets_.size() + share_.count_below(first_slot_ + rest) - share_.count_below(first_slot_);
}

std::optional<SlotStream::Next> SlotStream::next() const noexcept {
  if (sending_ == parts_.size() || packets_.empty()) {
    return std::nullopt;
  }
  const InFlight& packet = packets_[next_index_];
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
  InFlight& packet = packets_[next_index_];
  OperationPart& part = *parts_[sending_];
  packet = {.part = &part,
            .slot = taken->slot,
            .round = static_cast<std::uint32_t>(lap_ + 1),
            .chunk = static_cast<std::uint32_t>(next_chunk(part)),
            .bytes = taken->bytes,
            .first_sent_at = now,
            .sent_at = now,
            .number = next_};
  ++next_;
  ++in_flight_;
  if (++next_index_ == packets_.size()) {
    next_index_ = 0;
    ++lap_;
  }
  if (next_ == part.own_end) {
    ++sending_;
  }
  return &packet;
}

InFlight* SlotStream::find(std::uint32_t slot) noexcept {
  const std::uint32_t offset = slot - first_slot_;  // wraps to a large number below first_slot_
  if (offset >= slots_ || !share_.has(slot)) {
    return nullptr;
  }
  return &packets_[share_.count_below(slot) - share_.count_below(first_slot_)];
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
  // Few operations are in flight and most end in order.
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
