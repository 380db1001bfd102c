// Counter-based random bits: Philox4x32 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC'11).
// Every bit is a function of (seed, tensor, round, domain, index): reproducible, and the same on every machine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace thc {

inline constexpr std::uint32_t kPhiloxMultiplier0 = 0xD2511F53;
inline constexpr std::uint32_t kPhiloxMultiplier1 = 0xCD9E8D57;
inline constexpr std::uint32_t kPhiloxWeyl0 = 0x9E3779B9;
inline constexpr std::uint32_t kPhiloxWeyl1 = 0xBB67AE85;

/// Signs must look independent over a whole training run; ten rounds are the authors' default.
inline constexpr int kSignRounds = 10;
/// Seven rounds are the fewest that pass BigCrush, and rounding bits are most of the cost of encoding.
inline constexpr int kRoundingRounds = 7;

/// Selects the random bits of one tensor in one training round.
struct RandomKey {
  std::uint64_t seed;
  std::uint32_t tensor;
  std::uint32_t round;
  std::size_t first = 0;  // what a kernel calls coordinate 0 is this one of the tensor; a multiple of 64
};

using PhiloxWords = std::array<std::uint32_t, 4>;

constexpr PhiloxWords philox4x32(PhiloxWords counter, std::array<std::uint32_t, 2> key, int rounds) noexcept {
  for (int i = 0; i < rounds; ++i) {
    const std::uint64_t product0 = std::uint64_t{kPhiloxMultiplier0} * counter[0];
    const std::uint64_t product1 = std::uint64_t{kPhiloxMultiplier1} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(product0)};
    key[0] += kPhiloxWeyl0;
    key[1] += kPhiloxWeyl1;
  }
  return counter;
}

constexpr PhiloxWords random_words(const RandomKey& key, std::uint32_t domain, std::uint32_t index,
                                   int rounds) noexcept {
  return philox4x32({index, domain, key.tensor, key.round},
                    {static_cast<std::uint32_t>(key.seed), static_cast<std::uint32_t>(key.seed >> 32)}, rounds);
}

inline constexpr std::uint32_t kSignDomain = 0;
/// Of the signs with which ranks round averages that they send back (thc/nearest.h).
inline constexpr std::uint32_t kDownSignDomain = 0xfffffffeU;
inline constexpr std::size_t kSignsPerPhiloxBlock = 128;

/// Selects one worker's rounding bits: those of a Philox domain other than kSignDomain, plus `phase` modulo 2^16.
/// byteps_thc/_scheme/rounding.py says which worker has which.
struct Rounding {
  std::uint32_t domain;
  std::uint16_t phase;
};

/// Whether the diagonal matrix D flips coordinate j.
constexpr bool sign_is_negative(const RandomKey& key, std::size_t j, std::uint32_t domain = kSignDomain) noexcept {
  j += key.first;
  const auto words = random_words(key, domain, static_cast<std::uint32_t>(j / kSignsPerPhiloxBlock), kSignRounds);
  return ((words[(j / 32) % 4] >> (j % 32)) & 1U) != 0;
}

/// 16 rounding bits of coordinate j. Groups of 64 coordinates take eight Philox blocks; within a group, word w of block
/// l holds coordinates 16 w + 2 l and 16 w + 2 l + 1, so that vectors of 64-bit lanes need no shuffle.
constexpr std::uint32_t rounding_bits(const RandomKey& key, const Rounding& rounding, std::size_t j) noexcept {
  j += key.first;
  const auto index = static_cast<std::uint32_t>(8 * (j / 64) + (j % 16) / 2);
  const auto words = random_words(key, rounding.domain, index, kRoundingRounds);
  return ((words[(j % 64) / 16] >> (16 * (j % 2))) + rounding.phase) & 0xffffU;
}

}  // namespace thc
