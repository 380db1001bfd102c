// Counter-based random bits: Philox4x32 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC'11).
// Every bit is a function of (seed, tensor, round, domain, index): reproducible, and the same on every machine.
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
  std::size_t first = 0;  // what a kernel calls coordinate 0 is this one of the tensor; a multiple of 64
};

inline constexpr std::uint32_t kSignDomain = 0;
/// Of the signs with which ranks round averages that they send back (thc/block_codes.h).
inline constexpr std::uint32_t kDownSignDomain = 0xfffffffeU;
inline constexpr std::size_t kSignsPerPhiloxBlock = 128;

/// Selects one worker's rounding bits: those of a Philox domain other than kSignDomain, plus `phase` modulo 2^16. Each
/// coordinate has 16. Groups of 64 coordinates take eight Philox blocks; within a group, word w of block l holds
/// coordinates 16 w + 2 l and 16 w + 2 l + 1, so that vectors of 64-bit lanes need no shuffle.
/// byteps_thc/_scheme/rounding.py says which worker has which.
struct Rounding {
  std::uint32_t domain;
  std::uint16_t phase;
};

}  // namespace thc
