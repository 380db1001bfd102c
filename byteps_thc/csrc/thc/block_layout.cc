#include "thc/block_layout.h"

#include <algorithm>
#include <bit>
#include <string>

#include "thc/errors.h"

namespace thc {
namespace {

void check_rotation_block(std::size_t rotation_block) {
  if (!std::has_single_bit(rotation_block) || rotation_block < kMinRotationBlock ||
      rotation_block > kMaxRotationBlock) {
    throw ConfigurationError("rotation_block must be a power of two in " + std::to_string(kMinRotationBlock) + ".." +
                             std::to_string(kMaxRotationBlock) + ", got " + std::to_string(rotation_block));
  }
}

void check_ends(std::span<const std::size_t> ends, std::size_t coordinates) {
  std::size_t before = 0;
  for (const std::size_t end : ends) {
    if (end <= before || end >= coordinates || end % BlockLayout::kEndMultiple != 0) {
      throw ConfigurationError("ends of blocks must be ascending multiples of " +
                               std::to_string(BlockLayout::kEndMultiple) + " between 0 and " +
                               std::to_string(coordinates) + ", got " + std::to_string(end) + " behind " +
                               std::to_string(before));
    }
    before = end;
  }
}

/// Appends where the blocks between two ends start.
void add_starts(std::size_t begin, std::size_t end, std::size_t rotation_block, std::vector<std::size_t>& starts) {
  while (begin < end) {
    starts.push_back(begin);
    begin += std::min(rotation_block, std::bit_floor(end - begin));
  }
}

}  // namespace

BlockLayout::BlockLayout(std::size_t coordinates, std::size_t rotation_block, std::span<const std::size_t> ends)
    : coordinates_(coordinates), rotation_block_(rotation_block) {
  check_rotation_block(rotation_block);
  check_ends(ends, coordinates);
  padded_ = (coordinates + kMinRotationBlock - 1) / kMinRotationBlock * kMinRotationBlock;
  // Behind the full blocks, the binary digits of the rest are the sizes of the smaller ones.
  blocks_ = padded_ / rotation_block + static_cast<std::size_t>(std::popcount(padded_ % rotation_block));
  if (!ends.empty()) {
    std::size_t begin = 0;
    for (const std::size_t end : ends) {
      add_starts(begin, end, rotation_block, starts_);
      begin = end;
    }
    add_starts(begin, padded_, rotation_block, starts_);
    blocks_ = starts_.size();
  }
}

std::size_t BlockLayout::offset(std::size_t i) const noexcept {
  if (!starts_.empty()) {
    return i < blocks_ ? starts_[i] : padded_;
  }
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
  if (!starts_.empty()) {
    return offset(i + 1) - starts_[i];
  }
  return std::min(rotation_block_, std::bit_floor(padded_ - offset(i)));
}

std::size_t BlockLayout::block_from(std::size_t coordinate) const noexcept {
  if (starts_.empty()) {
    const std::size_t full = padded_ / rotation_block_;
    std::size_t block = std::min((coordinate + rotation_block_ - 1) / rotation_block_, full);
    while (block < blocks_ && offset(block) < coordinate) {
      ++block;
    }
    return block;
  }
  return static_cast<std::size_t>(std::lower_bound(starts_.begin(), starts_.end(), coordinate) - starts_.begin());
}

std::size_t BlockLayout::block_within(std::size_t begin, std::size_t coordinates) const noexcept {
  const std::size_t limit = offset(begin) + coordinates;
  const std::size_t end = block_from(limit);
  return offset(end) > limit ? end - 1 : end;
}

BlockLayout BlockLayout::part(std::size_t begin, std::size_t end) const {
  const std::size_t first = offset(begin);
  BlockLayout cut(std::min(offset(end), coordinates_) - first, rotation_block_);
  if (!starts_.empty()) {
    cut.blocks_ = end - begin;
    cut.starts_.reserve(cut.blocks_);
    for (std::size_t i = begin; i < end; ++i) {
      cut.starts_.push_back(starts_[i] - first);
    }
  }
  return cut;
}

}  // namespace thc
