#include "io/authenticated_io.h"

#include <sodium.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "thc/errors.h"
#include "thc/wire_layout.h"

namespace thc::io {
namespace {

constexpr std::size_t kHeaderBytes = sizeof(wire::Header);

std::uint16_t job_of(const std::uint8_t* header) noexcept {
  wire::Header fields;
  std::memcpy(&fields, header, sizeof fields);
  return fields.job_id;
}

using TagInput = std::array<std::uint8_t, kHeaderBytes + sizeof(PayloadDigest)>;

TagInput tag_input(const std::uint8_t* header, const PayloadDigest& digest) noexcept {
  TagInput input;
  std::memcpy(input.data(), header, kHeaderBytes);
  std::memcpy(input.data() + kHeaderBytes, digest.data(), digest.size());
  return input;
}

/// All bits at once: the time does not tell how many are right.
bool is_equal(const Tag& expected, const std::uint8_t* tag) noexcept {
  std::uint64_t left = 0;
  std::uint64_t right = 0;
  static_assert(sizeof left == kTagBytes);
  std::memcpy(&left, expected.data(), kTagBytes);
  std::memcpy(&right, tag, kTagBytes);
  return (left ^ right) == 0;
}

/// What is between the header and the tag of a packet that has both.
std::span<const std::uint8_t> payload_of(const RxPacket& packet) noexcept {
  return {packet.data + kHeaderBytes, packet.size_bytes - kHeaderBytes - kTagBytes};
}

const std::uint8_t* tag_of(const RxPacket& packet) noexcept { return packet.data + packet.size_bytes - kTagBytes; }

}  // namespace

PayloadDigest digest_payload(const MessageKeys& keys, std::span<const std::uint8_t> payload) noexcept {
  return naive::sip_hash_128(keys.payload, payload);
}

Tag make_tag(const MessageKeys& keys, const std::uint8_t* header, const PayloadDigest& digest) noexcept {
  return naive::sip_hash_64(keys.header, tag_input(header, digest));
}

AuthenticatedIo::AuthenticatedIo(std::unique_ptr<PacketIo> inner, const JobKeys& keys, Direction sends,
                                 std::optional<Endpoint> above)
    : inner_(std::move(inner)),
      keys_(keys),
      sends_(sends),
      receives_(sends == Direction::kUp ? Direction::kDown : Direction::kUp),
      above_(above) {
  if (sodium_init() < 0) {
    throw TransportError("libsodium does not start: the kernel has no random numbers for it");
  }
}

const std::optional<MessageKeys>& AuthenticatedIo::keys_of(std::uint16_t job, Direction direction) noexcept {
  Place& place = places_[job % kPlaces];
  if (place.job != job) {
    send_queued();  // with the keys that go
    place = {.job = job, .up = keys_.derive(job, Direction::kUp), .down = keys_.derive(job, Direction::kDown)};
  }
  return direction == Direction::kUp ? place.up : place.down;
}

std::size_t AuthenticatedIo::receive(std::span<RxPacket> packets) noexcept {
  const std::size_t received = inner_->receive(packets);
  std::size_t kept = 0;
  for (std::size_t first = 0; first < received; first += kBurst) {
    const auto burst = packets.subspan(first, std::min(received - first, kBurst));
    const std::uint64_t genuine = find_genuine(burst);
    for (std::size_t i = 0; i < burst.size(); ++i) {
      RxPacket packet = burst[i];
      if ((genuine >> i & 1) != 0) {
        packet.size_bytes -= kTagBytes;
        packets[kept++] = packet;
      } else {
        ++rx_unauthenticated_;
        rx_unauthenticated_bytes_ += packet.size_bytes;
      }
    }
  }
  return kept;
}

std::uint64_t AuthenticatedIo::find_genuine(std::span<const RxPacket> packets) noexcept {
  std::array<std::uint8_t, kBurst> number;  // of the packets of jobs with a place
  std::array<const MessageKeys*, kBurst> keys;
  std::array<SipMessage, kBurst> messages;
  std::size_t count = 0;
  std::uint64_t of_new_jobs = 0;
  for (std::size_t i = 0; i < packets.size(); ++i) {
    const RxPacket& packet = packets[i];
    if (packet.size_bytes < kHeaderBytes + kTagBytes) continue;
    const std::uint16_t job = job_of(packet.data);
    const Place& place = places_[job % kPlaces];
    if (place.job != job) {
      of_new_jobs |= std::uint64_t{1} << i;
      continue;
    }
    const auto& known = received_from(packet.from) == Direction::kUp ? place.up : place.down;
    if (!known) continue;
    number[count] = static_cast<std::uint8_t>(i);
    keys[count] = &*known;
    messages[count++] = {payload_of(packet), &known->payload};
  }
  std::array<PayloadDigest, kBurst> digests;
  std::array<TagInput, kBurst> inputs;
  std::array<Tag, kBurst> expected;
  sip_hash(std::span(messages).first(count), digests);
  for (std::size_t i = 0; i < count; ++i) {
    inputs[i] = tag_input(packets[number[i]].data, digests[i]);
    messages[i] = {inputs[i], &keys[i]->header};
  }
  sip_hash(std::span(messages).first(count), expected);
  std::uint64_t genuine = 0;
  for (std::size_t i = 0; i < count; ++i) {
    genuine |= static_cast<std::uint64_t>(is_equal(expected[i], tag_of(packets[number[i]]))) << number[i];
  }
  // Last, because they take places, and with them keys that were used above.
  for (; of_new_jobs != 0; of_new_jobs &= of_new_jobs - 1) {
    const auto i = static_cast<std::size_t>(std::countr_zero(of_new_jobs));
    genuine |= static_cast<std::uint64_t>(is_genuine_of_new_job(packets[i])) << i;
  }
  return genuine;
}

bool AuthenticatedIo::is_genuine_of_new_job(const RxPacket& packet) noexcept {
  const std::uint16_t job = job_of(packet.data);
  const Direction direction = received_from(packet.from);
  const auto keys = keys_.derive(job, direction);
  if (!keys || !is_equal(make_tag(*keys, packet.data, digest_payload(*keys, payload_of(packet))), tag_of(packet))) {
    return false;
  }
  // Kept once a tag is right: without a key nobody can take the place of a job that has one.
  keys_of(job, direction);
  return true;
}

bool AuthenticatedIo::send(Endpoint to, std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload,
                           std::span<const std::uint8_t> trailer) noexcept {
  // A short payload may come as a part of the header, but only the one or the other is hashed here.
  const bool has_size = header.size() >= kHeaderBytes && header.size() <= kMaxHeaderBytes;
  const bool has_both = header.size() > kHeaderBytes && !payload.empty();
  const auto* keys = has_size ? &keys_of(job_of(header.data()), sent_to(to)) : nullptr;
  if (keys == nullptr || !*keys || has_both || !trailer.empty()) {
    ++tx_errors_;
    return false;
  }
  if (queued_count_ == kBurst) send_queued();
  queue(to, **keys, header, payload);
  return true;
}

void AuthenticatedIo::queue(Endpoint to, const MessageKeys& keys, std::span<const std::uint8_t> header,
                            std::span<const std::uint8_t> payload) noexcept {
  Queued& queued = queued_[queued_count_++];
  queued.to = to;
  queued.keys = &keys;
  queued.header_bytes = header.size();
  queued.payload = payload;
  std::memcpy(queued.header.data(), header.data(), header.size());
  const auto own_part = std::span(queued.header).subspan(kHeaderBytes, header.size() - kHeaderBytes);
  const SipMessage message{own_part.empty() ? payload : own_part, &keys.payload};
  if (digest_count_ > 0) {
    const SipMessage& last = to_digest_[digest_count_ - 1];
    const bool known = last.key == message.key && last.bytes.data() == message.bytes.data() &&
                       last.bytes.size() == message.bytes.size();
    digest_count_ -= known ? 1 : 0;
  }
  to_digest_[digest_count_] = message;
  queued.digest = digest_count_++;
}

void AuthenticatedIo::send_queued() noexcept {
  std::array<PayloadDigest, kBurst> digests;
  std::array<TagInput, kBurst> inputs;
  std::array<SipMessage, kBurst> messages;
  std::array<Tag, kBurst> tags;
  const auto queued = std::span(queued_).first(queued_count_);
  sip_hash(std::span(to_digest_).first(digest_count_), digests);
  for (std::size_t i = 0; i < queued.size(); ++i) {
    inputs[i] = tag_input(queued[i].header.data(), digests[queued[i].digest]);
    messages[i] = {inputs[i], &queued[i].keys->header};
  }
  sip_hash(std::span(messages).first(queued.size()), tags);
  for (std::size_t i = 0; i < queued.size(); ++i) {
    inner_->send(queued[i].to, std::span(queued[i].header).first(queued[i].header_bytes), queued[i].payload, tags[i]);
  }
  queued_count_ = 0;
  digest_count_ = 0;
}

void AuthenticatedIo::flush() noexcept {
  send_queued();
  inner_->flush();
}

const IoCounters& AuthenticatedIo::counters() const noexcept {
  counters_ = inner_->counters();
  counters_.rx_packets -= rx_unauthenticated_;
  counters_.rx_bytes -= rx_unauthenticated_bytes_;
  counters_.rx_unauthenticated = rx_unauthenticated_;
  counters_.tx_errors += tx_errors_;
  return counters_;
}

}  // namespace thc::io
