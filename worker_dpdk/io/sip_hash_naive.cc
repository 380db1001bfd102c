#include <sodium.h>

#include "io/sip_hash.h"

namespace thc::io::naive {

SipHash64 sip_hash_64(const SipKey& key, std::span<const std::uint8_t> bytes) noexcept {
  SipHash64 hash;
  static_assert(crypto_shorthash_siphash24_BYTES == sizeof(SipHash64));
  static_assert(crypto_shorthash_siphash24_KEYBYTES == sizeof(SipKey));
  crypto_shorthash_siphash24(hash.data(), bytes.data(), bytes.size(), key.data());
  return hash;
}

SipHash128 sip_hash_128(const SipKey& key, std::span<const std::uint8_t> bytes) noexcept {
  SipHash128 hash;
  static_assert(crypto_shorthash_siphashx24_BYTES == sizeof(SipHash128));
  static_assert(crypto_shorthash_siphashx24_KEYBYTES == sizeof(SipKey));
  crypto_shorthash_siphashx24(hash.data(), bytes.data(), bytes.size(), key.data());
  return hash;
}

}  // namespace thc::io::naive
