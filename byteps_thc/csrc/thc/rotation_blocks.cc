#include "thc/rotation_blocks.h"

#include <algorithm>
#include <bit>
#include <string>

#include "thc/block_layout.h"
#include "thc/errors.h"

namespace thc {
namespace {

constexpr std::size_t round_up(std::size_t count) {
  return (count + kMinRotationBlock - 1) / kMinRotationBlock * kMinRotationBlock;
}

}  // namespace

RotationBlocks::RotationBlocks(std::size_t coordinates, std::size_t rotation_block, std::span<const std::uint64_t> ends)
    : coordinates_(coordinates) {
  const BlockLayout checked(0, rotation_block);
  std::size_t begin = 0;
  const auto add_segment = [&](std::size_t end) {
    while (begin < end) {
      const std::size_t left = end - begin;
      const std::size_t size = left < kMinRotationBlock
                                   ? std::max(kMinRowBlock, std::bit_ceil(left))
                                   : std::min(checked.rotation_block(), std::bit_floor(round_up(left)));
      const std::size_t used = std::min(size, left);
      blocks_.push_back({begin, padded_, static_cast<std::uint32_t>(size), static_cast<std::uint32_t>(used)});
      begin += used;
      padded_ += size;
    }
  };
  for (const std::uint64_t end : ends) {
    if (end <= begin || end >= coordinates) {
      throw ConfigurationError("ends of blocks must ascend between 0 and " + std::to_string(coordinates) + ", got " +
                               std::to_string(end) + " behind " + std::to_string(begin));
    }
    add_segment(end);
  }
  add_segment(coordinates);
}

RotationBlocks RotationBlocks::part(std::size_t begin, std::size_t end) const {
  if (begin > end || end > blocks_.size()) {
    throw InputError("blocks: expected a range within 0 .. " + std::to_string(blocks_.size()) + ", got " +
                     std::to_string(begin) + " .. " + std::to_string(end));
  }
  RotationBlocks cut(*this);
  cut.blocks_.assign(blocks_.begin() + static_cast<std::ptrdiff_t>(begin),
                     blocks_.begin() + static_cast<std::ptrdiff_t>(end));
  cut.coordinates_ = 0;
  cut.padded_ = 0;
  for (const RotationBlock& block : cut.blocks_) {
    cut.coordinates_ += block.used;
    cut.padded_ += block.size;
  }
  return cut;
}

}  // namespace thc
