// Philox4x32 (Salmon et al., SC'11): every bit is a function of (seed, tensor, round, domain, index).
#pragma once

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
  std::size_t first = 0;  // tensor's coordinate that a kernel calls 0; a multiple of 64
};

inline constexpr std::uint32_t kSignDomain = 0;
/// Domain of the signs of averages among ranks (thc/block_codes.h).
inline constexpr std::uint32_t kDownSignDomain = 0xfffffffeU;
inline constexpr std::size_t kSignsPerPhiloxBlock = 128;

/// Rounding bits of a worker (byteps_thc/_scheme/rounding.py): 16 bits of a Philox domain, plus `phase` modulo 2^16.
/// Groups of 64 coordinates have eight Philox blocks. Word w of block l has coordinates 16 w + 2 l and 16 w + 2 l + 1:
/// vectors of 64-bit lanes need no shuffle.
struct Rounding {
  std::uint32_t domain;
  std::uint16_t phase;
};

}  // namespace thc
