#include "io/authenticated_io.h"

#include <sodium.h>

#include <algorithm>
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

}  // namespace

PayloadDigest digest_payload(const MessageKeys& keys, std::span<const std::uint8_t> payload) noexcept {
  PayloadDigest digest;
  static_assert(crypto_shorthash_siphashx24_BYTES == std::tuple_size_v<PayloadDigest>);
  crypto_shorthash_siphashx24(digest.data(), payload.data(), payload.size(), keys.payload.data());
  return digest;
}

Tag make_tag(const MessageKeys& keys, const std::uint8_t* header, const PayloadDigest& digest) noexcept {
  std::array<std::uint8_t, kHeaderBytes + std::tuple_size_v<PayloadDigest>> input;
  std::memcpy(input.data(), header, kHeaderBytes);
  std::memcpy(input.data() + kHeaderBytes, digest.data(), digest.size());
  Tag tag;
  static_assert(crypto_shorthash_siphash24_BYTES == kTagBytes);
  crypto_shorthash_siphash24(tag.data(), input.data(), input.size(), keys.header.data());
  return tag;
}

namespace {

/// Whether `packet`, of a header and a tag at least, ends with the tag that `keys` give.
bool has_right_tag(const std::optional<MessageKeys>& keys, const RxPacket& packet) noexcept {
  if (!keys) {
    return false;
  }
  const std::size_t payload_bytes = packet.size_bytes - kHeaderBytes - kTagBytes;
  const Tag expected = make_tag(*keys, packet.data, digest_payload(*keys, {packet.data + kHeaderBytes, payload_bytes}));
  return sodium_memcmp(expected.data(), packet.data + kHeaderBytes + payload_bytes, kTagBytes) == 0;
}

}  // namespace

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
    place = {.job = job, .up = keys_.derive(job, Direction::kUp), .down = keys_.derive(job, Direction::kDown)};
    queued_keys_ = nullptr;
  }
  return direction == Direction::kUp ? place.up : place.down;
}

std::size_t AuthenticatedIo::receive(std::span<RxPacket> packets) noexcept {
  const std::size_t received = inner_->receive(packets);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < received; ++i) {
    RxPacket packet = packets[i];
    if (is_genuine(packet)) {
      packet.size_bytes -= kTagBytes;
      packets[kept++] = packet;
    } else {
      ++rx_unauthenticated_;
      rx_unauthenticated_bytes_ += packet.size_bytes;
    }
  }
  return kept;
}

bool AuthenticatedIo::is_genuine(const RxPacket& packet) noexcept {
  if (packet.size_bytes < kHeaderBytes + kTagBytes) {
    return false;
  }
  const std::uint16_t job = job_of(packet.data);
  const Direction direction = received_from(packet.from);
  const Place& place = places_[job % kPlaces];
  if (place.job == job) {
    return has_right_tag(direction == Direction::kUp ? place.up : place.down, packet);
  }
  // Kept once a tag is right: without a key nobody can take the place of a job that has one.
  if (!has_right_tag(keys_.derive(job, direction), packet)) {
    return false;
  }
  keys_of(job, direction);
  return true;
}

bool AuthenticatedIo::send(Endpoint to, std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload,
                           std::span<const std::uint8_t> trailer) noexcept {
  // A short payload may come as a part of the header, but only the one or the other is hashed here.
  const auto rest = header.subspan(std::min(header.size(), kHeaderBytes));
  const auto* keys = header.size() < kHeaderBytes ? nullptr : &keys_of(job_of(header.data()), sent_to(to));
  if (keys == nullptr || !*keys || (!rest.empty() && !payload.empty()) || !trailer.empty()) {
    ++tx_errors_;
    return false;
  }
  const Tag tag =
      make_tag(**keys, header.data(), rest.empty() ? digest_of(**keys, payload) : digest_payload(**keys, rest));
  return inner_->send(to, header, payload, tag);
}

const PayloadDigest& AuthenticatedIo::digest_of(const MessageKeys& keys,
                                                std::span<const std::uint8_t> payload) noexcept {
  const bool known =
      queued_keys_ == &keys && queued_payload_.data() == payload.data() && queued_payload_.size() == payload.size();
  if (!known) {
    queued_digest_ = digest_payload(keys, payload);
    queued_keys_ = &keys;
    queued_payload_ = payload;
  }
  return queued_digest_;
}

void AuthenticatedIo::flush() noexcept {
  queued_keys_ = nullptr;
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
