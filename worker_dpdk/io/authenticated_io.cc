#include "io/authenticated_io.h"

#include <sodium.h>

#include <cstring>
#include <utility>

#include "thc/kernel_random.h"
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
  static_assert(crypto_onetimeauth_BYTES == sizeof digest);
  static_assert(crypto_onetimeauth_KEYBYTES == sizeof keys.payload);
  crypto_onetimeauth(digest.data(), payload.data(), payload.size(), keys.payload.data());
  return digest;
}

Tag make_tag(const MessageKeys& keys, const std::uint8_t* header, const PayloadDigest& digest) noexcept {
  std::array<std::uint8_t, kHeaderBytes + sizeof digest> input;
  std::memcpy(input.data(), header, kHeaderBytes);
  std::memcpy(input.data() + kHeaderBytes, digest.data(), digest.size());
  Tag tag;
  static_assert(crypto_shorthash_siphash24_BYTES == sizeof tag);
  static_assert(crypto_shorthash_siphash24_KEYBYTES == sizeof keys.header);
  crypto_shorthash_siphash24(tag.data(), input.data(), input.size(), keys.header.data());
  return tag;
}

AuthenticatedIo::AuthenticatedIo(std::unique_ptr<PacketIo> inner, const JobKeys& keys, Direction sends,
                                 std::optional<Endpoint> above)
    : ForwardingIo(std::move(inner)),
      keys_(keys),
      sends_(sends),
      receives_(sends == Direction::kUp ? Direction::kDown : Direction::kUp),
      above_(above) {
  start_libsodium();
}

const std::optional<MessageKeys>& AuthenticatedIo::keys_of(std::uint16_t job, Direction direction) noexcept {
  Place& place = places_[job % kPlaces];
  if (place.job != job) {
    last_sent_ = {};  // the cached digest may use keys that this replaces
    place = {.job = job, .up = keys_.derive(job, Direction::kUp), .down = keys_.derive(job, Direction::kDown)};
  }
  return direction == Direction::kUp ? place.up : place.down;
}

std::size_t AuthenticatedIo::receive(std::span<RxPacket> packets) noexcept {
  const std::size_t kept = receive_if(packets, [this](const RxPacket& packet) { return is_genuine(packet); });
  for (RxPacket& packet : packets.first(kept)) packet.size_bytes -= kTagBytes;
  return kept;
}

bool AuthenticatedIo::is_genuine(const RxPacket& packet) noexcept {
  if (packet.size_bytes < kHeaderBytes + kTagBytes) return false;
  const std::uint16_t job = job_of(packet.data);
  const Direction direction = received_from(packet.from);
  const bool has_place = places_[job % kPlaces].job == job;
  const auto keys = has_place ? keys_of(job, direction) : keys_.derive(job, direction);
  if (!keys) return false;
  const std::span payload(packet.data + kHeaderBytes, packet.size_bytes - kHeaderBytes - kTagBytes);
  const Tag expected = make_tag(*keys, packet.data, digest_payload(*keys, payload));
  // Without an early exit, so the time does not leak the number of right bits.
  if (sodium_memcmp(expected.data(), packet.data + packet.size_bytes - kTagBytes, kTagBytes) != 0) return false;
  // The place is assigned after the check, so a forged packet cannot evict the keys of a job.
  keys_of(job, direction);
  return true;
}

bool AuthenticatedIo::send(Endpoint to, std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload,
                           std::span<const std::uint8_t> trailer) noexcept {
  // Only one of header and payload is hashed, so a short payload may travel in the header instead.
  const bool has_size = header.size() >= kHeaderBytes && header.size() <= kMaxHeaderBytes;
  const bool has_both = header.size() > kHeaderBytes && !payload.empty();
  const auto* keys = has_size ? &keys_of(job_of(header.data()), sent_to(to)) : nullptr;
  if (keys == nullptr || !*keys || has_both || !trailer.empty()) {
    ++tx_errors_;
    return false;
  }
  const PayloadDigest digest =
      payload.empty() ? digest_payload(**keys, header.subspan(kHeaderBytes)) : digest_once(**keys, payload);
  return inner().send(to, header, payload, make_tag(**keys, header.data(), digest));
}

const PayloadDigest& AuthenticatedIo::digest_once(const MessageKeys& keys,
                                                  std::span<const std::uint8_t> payload) noexcept {
  const bool known = last_sent_.keys == &keys && last_sent_.payload.data() == payload.data() &&
                     last_sent_.payload.size() == payload.size();
  if (!known) last_sent_ = {&keys, payload, digest_payload(keys, payload)};
  return last_sent_.digest;
}

void AuthenticatedIo::flush() noexcept {
  last_sent_ = {};  // payloads may change now
  inner().flush();
}

const IoCounters& AuthenticatedIo::counters() const noexcept {
  counters_ = counters_without(&IoCounters::rx_unauthenticated);
  counters_.tx_errors += tx_errors_;
  return counters_;
}

}  // namespace thc::io
