// What a server answers: headers from the packet that is answered, and short messages.
#pragma once

#include <cstdint>
#include <span>

#include "thc/hello.h"
#include "thc/slot_pool.h"
#include "thc/wire_layout.h"

namespace thc::ps {

/// Header and short payload, sent as one copied piece.
template <typename Payload>
struct Message {
  wire::Header header;
  Payload payload;
};

template <typename T>
std::span<const std::uint8_t> bytes_of(const T& value) noexcept {
  return {reinterpret_cast<const std::uint8_t*>(&value), sizeof(value)};
}

wire::Header reply_header(const wire::Header& request, wire::MessageType type) noexcept;
/// Of the aggregate or the maximum norms, to the sender of `request`.
wire::Header result_header(const wire::Header& request, const SlotReply& reply) noexcept;
/// Of messages without a payload.
wire::Header bare_header(const wire::Header& request, wire::MessageType type) noexcept;

Message<wire::ErrorPayload> make_error(const wire::Header& request, const Refusal& refusal) noexcept;
/// No longer than the HELLO it answers.
Message<wire::ChallengePayload> make_challenge(const wire::Header& hello, std::uint64_t cookie) noexcept;

}  // namespace thc::ps
