#include "cookies.h"

#include <sodium.h>

#include <cstring>

#include "thc/byte_order.h"

namespace thc::ps {
namespace {

/// Has no padding, since all bytes are hashed.
struct Claim {
  be64_t ip_high;
  be64_t ip_low;
  be16_t port;
  be16_t job_id;
  be32_t shard;
  be8_t worker_id;
  be64_t nonce;
  be64_t period;
};

std::int64_t period_of(TimePoint now) noexcept { return now.time_since_epoch() / Cookies::kPeriod; }

}  // namespace

static_assert(crypto_shorthash_siphash24_KEYBYTES == 16 && crypto_shorthash_siphash24_BYTES == sizeof(std::uint64_t));

Cookies::Cookies() noexcept { randombytes_buf(secret_.data(), secret_.size()); }

std::uint64_t Cookies::hash(const wire::Header& hello, std::uint64_t nonce, io::Endpoint from,
                            std::int64_t period) const noexcept {
  Claim claim;
  static_assert(sizeof(claim) == 41);
  claim.ip_high = from.ip.high;
  claim.ip_low = from.ip.low;
  claim.port = from.port;
  claim.job_id = hello.job_id;
  claim.shard = hello.slot;
  claim.worker_id = hello.worker_id;
  claim.nonce = nonce;
  claim.period = static_cast<std::uint64_t>(period);
  std::uint64_t hash = 0;
  crypto_shorthash_siphash24(reinterpret_cast<unsigned char*>(&hash), reinterpret_cast<const unsigned char*>(&claim),
                             sizeof(claim), secret_.data());
  return hash;
}

std::uint64_t Cookies::make(const wire::Header& hello, std::uint64_t nonce, io::Endpoint from,
                            TimePoint now) const noexcept {
  return hash(hello, nonce, from, period_of(now));
}

bool Cookies::accepts(std::uint64_t cookie, const wire::Header& hello, std::uint64_t nonce, io::Endpoint from,
                      TimePoint now) const noexcept {
  const std::int64_t period = period_of(now);
  return cookie == hash(hello, nonce, from, period) || cookie == hash(hello, nonce, from, period - 1);
}

}  // namespace thc::ps
