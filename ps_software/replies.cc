#include "replies.h"

namespace thc::ps {

using wire::MessageType;

static_assert(sizeof(Message<wire::ChallengePayload>) <= sizeof(Message<wire::HelloPayload>));
static_assert(sizeof(Message<wire::WelcomePayload>) <= sizeof(Message<wire::HelloPayload>));
static_assert(sizeof(Message<wire::ErrorPayload>) <= sizeof(Message<wire::HelloPayload>));

wire::Header reply_header(const wire::Header& request, MessageType type) noexcept {
  wire::Header header = request;
  header.message_type = static_cast<std::uint8_t>(type);
  header.flags = static_cast<std::uint8_t>(request.flags & wire::kFlagChecksum);
  header.contributions = std::uint8_t{0};
  header.switch_pass = std::uint8_t{0};
  header.switch_step = std::uint8_t{0};
  header.switch_state = std::uint16_t{0};
  return header;
}

wire::Header result_header(const wire::Header& request, const SlotReply& reply) noexcept {
  const bool norms = request.message_type == static_cast<std::uint8_t>(MessageType::kNorm);
  wire::Header header = reply_header(request, norms ? MessageType::kMaxNorm : MessageType::kAggregate);
  if (reply.contributions < request.num_workers) {
    header.flags = static_cast<std::uint8_t>(header.flags | wire::kFlagPartial);
  }
  header.contributions = reply.contributions;
  header.payload_count = reply.count;
  return header;
}

wire::Header bare_header(const wire::Header& request, MessageType type) noexcept {
  wire::Header header = reply_header(request, type);
  header.payload_count = std::uint16_t{0};
  return header;
}

Message<wire::ErrorPayload> make_error(const wire::Header& request, const Refusal& refusal) noexcept {
  Message<wire::ErrorPayload> message{.header = bare_header(request, MessageType::kError), .payload = {}};
  message.payload.worker_bitmap = refusal.worker_bitmap;
  message.payload.reason = static_cast<std::uint16_t>(refusal.reason);
  message.payload.field = static_cast<std::uint16_t>(refusal.field);
  message.payload.job_value = refusal.job_value;
  return message;
}

Message<wire::ChallengePayload> make_challenge(const wire::Header& hello, std::uint64_t cookie) noexcept {
  Message<wire::ChallengePayload> message{.header = bare_header(hello, MessageType::kChallenge), .payload = {}};
  message.payload.cookie = cookie;
  return message;
}

}  // namespace thc::ps
