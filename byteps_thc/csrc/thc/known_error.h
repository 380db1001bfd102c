// What a worker's rounding errs by on the average, given the random bits it rounds with.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace thc {

/// A function of 16 random bits, a line on each of 16 pieces of them, in units of table steps. Python makes two of it
/// (byteps_thc/tables/known_error.py): of the bits that one worker rounds with, and of known_sum_bits(), for a sum.
struct KnownError {
  static constexpr std::size_t kPieces = 16;
  static constexpr int kPieceShift = 12;

  std::array<float, kPieces> offset;
  std::array<float, kPieces> slope;

  float at(std::uint32_t bits) const noexcept {
    const std::size_t piece = bits >> kPieceShift;
    return offset[piece] + slope[piece] * (static_cast<float>(bits) + 0.5F);
  }
};

/// Where `workers` round with `bits` plus phases that are spread evenly, what is known of their sum has the period
/// 2^16 / workers: the place in the period, in 16 bits.
constexpr std::uint32_t known_sum_bits(std::uint32_t bits, unsigned workers) noexcept {
  return (bits * workers) & 0xffffU;
}

}  // namespace thc
