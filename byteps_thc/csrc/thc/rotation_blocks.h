// Rotation blocks of tensors and of rows: none has coordinates of two, whatever their sizes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace thc {

/// The smallest block: rows of embeddings are often narrower than kMinRotationBlock, the least that a switch takes.
inline constexpr std::size_t kMinRowBlock = 16;

/// A rotation block. Coordinates are packed; codes, and random signs, count the padding in front of them, too.
struct RotationBlock {
  std::uint64_t coordinate;  // the first one, in the gradient
  std::uint64_t offset;      // of its first code, a multiple of kMinRowBlock
  std::uint32_t size;        // codes, a power of two
  std::uint32_t used;        // coordinates; the others are padding, zero
  bool operator==(const RotationBlock&) const = default;
};

/// Cuts a gradient at `ends`, and each segment into blocks as BlockLayout does: full blocks, then ever smaller powers
/// of two, the last of which is padded with zeros. What is left below kMinRotationBlock is in a block of 16, 32 or 64.
/// Example: 300 coordinates that end at 100 and 250 -> sizes 128 (100 used), 128, 32 (22 used), 64 (50 used).
class RotationBlocks {
 public:
  /// Throws ConfigurationError unless rotation_block is a power of two in [kMinRotationBlock, kMaxRotationBlock], and
  /// ends ascend between 0 and coordinates.
  RotationBlocks(std::size_t coordinates, std::size_t rotation_block, std::span<const std::uint64_t> ends = {});

  std::span<const RotationBlock> blocks() const noexcept { return blocks_; }
  std::size_t coordinates() const noexcept { return coordinates_; }
  /// Coordinates with padding: as many codes.
  std::size_t padded() const noexcept { return padded_; }
  /// Blocks begin .. end - 1, whose coordinates and offsets stay those of the whole: what a rank owns. Throws
  /// InputError unless begin <= end <= blocks().size().
  RotationBlocks part(std::size_t begin, std::size_t end) const;

 private:
  std::size_t coordinates_;
  std::size_t padded_ = 0;
  std::vector<RotationBlock> blocks_;
};

}  // namespace thc
