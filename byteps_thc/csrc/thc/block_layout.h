// Rotation blocks of a partition.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "thc/thread_pool.h"
#include "thc/wire_layout.h"

namespace thc {

inline constexpr std::size_t kMinRotationBlock = wire::kMinRotationBlock;
inline constexpr std::size_t kMaxRotationBlock = wire::kMaxRotationBlock;
inline constexpr std::size_t kDefaultRotationBlock = wire::kDefaultRotationBlock;

/// Rotation blocks of one partition: full blocks, then ever smaller powers of two down to kMinRotationBlock, the last
/// one padded with zeros. Example: 21000 in blocks of 8192 -> 8192, 8192, 4096, 512, 64 (56 of its 64 used).
/// The sequence begins anew behind each of the ends.
class BlockLayout {
 public:
  /// Ends are multiples of so many coordinates.
  static constexpr std::size_t kEndMultiple = 128;

  /// rotation_block: a power of two, kMinRotationBlock to kMaxRotationBlock. ends: ascending multiples of kEndMultiple
  /// between 0 and coordinates. Throws ConfigurationError for others.
  BlockLayout(std::size_t coordinates, std::size_t rotation_block, std::span<const std::size_t> ends = {});

  std::size_t coordinates() const noexcept { return coordinates_; }
  /// Coordinates with padding; a multiple of kMinRotationBlock.
  std::size_t padded() const noexcept { return starts_.back(); }
  std::size_t blocks() const noexcept { return starts_.size() - 1; }
  std::size_t rotation_block() const noexcept { return rotation_block_; }
  /// First coordinate and size of block i < blocks(); offset(blocks()) is padded().
  std::size_t offset(std::size_t i) const noexcept { return starts_[i]; }
  std::size_t size(std::size_t i) const noexcept { return starts_[i + 1] - starts_[i]; }
  /// The first block that begins at `coordinate` or behind it; blocks() if none does.
  std::size_t block_from(std::size_t coordinate) const noexcept;
  /// The block behind those from `begin` on that have `coordinates` together, a multiple of rotation_block(), or less.
  std::size_t block_within(std::size_t begin, std::size_t coordinates) const noexcept;
  /// The blocks begin .. end - 1 as a partition of their own.
  BlockLayout part(std::size_t begin, std::size_t end) const;

 private:
  explicit BlockLayout(std::size_t rotation_block) noexcept : coordinates_(0), rotation_block_(rotation_block) {}

  std::size_t coordinates_;
  std::size_t rotation_block_;
  std::vector<std::size_t> starts_;  // of the blocks, and the end of the last one
};

/// for_each_range of rotation blocks: work(begin, end) for blocks begin .. end - 1. least: coordinates of a range.
template <class Work>
void for_each_blocks(ThreadPool* pool, const BlockLayout& layout, std::size_t least, const Work& work) {
  for_each_range(pool, layout.coordinates(), layout.rotation_block(), least, [&](std::size_t first, std::size_t size) {
    const std::size_t end = first + size;
    work(layout.block_from(first), end == layout.coordinates() ? layout.blocks() : layout.block_from(end));
  });
}

}  // namespace thc
