#include "thc/block_layout.h"

#include <algorithm>
#include <bit>
#include <string>

#include "thc/errors.h"

namespace thc {

BlockLayout::BlockLayout(std::size_t coordinates, std::size_t rotation_block)
    : coordinates_(coordinates), rotation_block_(rotation_block) {
  if (!std::has_single_bit(rotation_block) || rotation_block < kMinRotationBlock ||
      rotation_block > kMaxRotationBlock) {
    throw ConfigurationError("rotation_block must be a power of two in " + std::to_string(kMinRotationBlock) + ".." +
                             std::to_string(kMaxRotationBlock) + ", got " + std::to_string(rotation_block));
  }
  padded_ = (coordinates + kMinRotationBlock - 1) / kMinRotationBlock * kMinRotationBlock;
  // Behind the full blocks, the binary digits of the rest are the sizes of the smaller ones.
  blocks_ = padded_ / rotation_block + static_cast<std::size_t>(std::popcount(padded_ % rotation_block));
}

std::size_t BlockLayout::offset(std::size_t i) const noexcept {
  const std::size_t full = padded_ / rotation_block_;
  if (i <= full) {
    return i * rotation_block_;
  }
  std::size_t rest = padded_ % rotation_block_;
  for (std::size_t k = full; k < i; ++k) {
    rest -= std::bit_floor(rest);
  }
  return padded_ - rest;
}

std::size_t BlockLayout::size(std::size_t i) const noexcept {
  return std::min(rotation_block_, std::bit_floor(padded_ - offset(i)));
}

}  // namespace thc
