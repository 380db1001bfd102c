// SipHash-2-4 of many messages side by side: one in each 64-bit lane of vector registers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace thc::io {

using SipKey = std::array<std::uint8_t, 16>;
using SipHash64 = std::array<std::uint8_t, 8>;
using SipHash128 = std::array<std::uint8_t, 16>;

/// Something to hash, of any length, and the key to do it with. Both stay where they are until hashed.
struct SipMessage {
  std::span<const std::uint8_t> bytes;
  const SipKey* key;
};

/// hashes[i] of messages[i]: libsodium's crypto_shorthash_siphash24 to the bit. `hashes`: as many as messages. Fast
/// when many messages are of about one length; reads nothing but their bytes. Time depends on the lengths only.
void sip_hash(std::span<const SipMessage> messages, std::span<SipHash64> hashes) noexcept;
/// The same with 128 bits of output: crypto_shorthash_siphashx24.
void sip_hash(std::span<const SipMessage> messages, std::span<SipHash128> hashes) noexcept;

/// One after the other, by libsodium.
namespace naive {
SipHash64 sip_hash_64(const SipKey& key, std::span<const std::uint8_t> bytes) noexcept;
SipHash128 sip_hash_128(const SipKey& key, std::span<const std::uint8_t> bytes) noexcept;
}  // namespace naive

}  // namespace thc::io
