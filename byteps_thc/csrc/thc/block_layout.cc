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
  const std::size_t padded = (coordinates + kMinRotationBlock - 1) / kMinRotationBlock * kMinRotationBlock;
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    add_starts(begin, end, rotation_block, starts_);
    begin = end;
  }
  add_starts(begin, padded, rotation_block, starts_);
  starts_.push_back(padded);
}

std::size_t BlockLayout::block_from(std::size_t coordinate) const noexcept {
  return static_cast<std::size_t>(std::lower_bound(starts_.begin(), starts_.end() - 1, coordinate) - starts_.begin());
}

std::size_t BlockLayout::block_within(std::size_t begin, std::size_t coordinates) const noexcept {
  const std::size_t limit = offset(begin) + coordinates;
  const std::size_t end = block_from(limit);
  return offset(end) > limit ? end - 1 : end;
}

BlockLayout BlockLayout::part(std::size_t begin, std::size_t end) const {
  BlockLayout cut(rotation_block_);
  const std::size_t first = starts_[begin];
  cut.coordinates_ = std::min(starts_[end], coordinates_) - first;
  cut.starts_.reserve(end - begin + 1);
  for (std::size_t i = begin; i <= end; ++i) cut.starts_.push_back(starts_[i] - first);
  return cut;
}

}  // namespace thc
