// Blocks of ranks: 64 coordinates of one tensor each, which are rotated together and have a scale.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace thc {

inline constexpr std::size_t kBlock = 64;       // coordinates
inline constexpr std::size_t kTileBlocks = 16;  // their scales have a common exponent
inline constexpr std::size_t kTileScaleBytes = 1 + kTileBlocks;

constexpr std::size_t tiles_of(std::size_t blocks) { return (blocks + kTileBlocks - 1) / kTileBlocks; }
constexpr std::size_t scale_bytes(std::size_t blocks) { return kTileScaleBytes * tiles_of(blocks); }

/// Some blocks of a table. first: number of the first one in its gradient, which selects random numbers.
struct Blocks {
  std::span<const std::uint64_t> words;
  std::uint32_t first = 0;

  static constexpr unsigned kUsedBits = 7;
  static constexpr std::uint64_t word(std::size_t coordinate, std::size_t used) {
    return coordinate << kUsedBits | used;
  }

  std::size_t size() const { return words.size(); }
  std::size_t coordinate(std::size_t b) const { return words[b] >> kUsedBits; }
  std::size_t used(std::size_t b) const { return words[b] & (word(1, 0) - 1); }
  std::size_t end() const { return words.empty() ? 0 : coordinate(size() - 1) + used(size() - 1); }
  Blocks part(std::size_t begin, std::size_t count) const {
    return {words.subspan(begin, count), first + static_cast<std::uint32_t>(begin)};
  }
  Blocks tile(std::size_t begin) const { return part(begin, std::min(kTileBlocks, size() - begin)); }
  /// Whether coordinates follow each other without a gap.
  bool is_whole() const {
    bool whole = true;
    for (std::size_t b = 0; b < size(); ++b) {
      whole &= words[b] == word(coordinate(0) + b * kBlock, kBlock);
    }
    return whole;
  }
};

/// The blocks of a gradient, or of a shard. A word: first coordinate << 7 | number of coordinates, 0 .. 64; missing
/// coordinates count as zero. Parts and copies share the words in memory.
class BlockTable {
 public:
  /// Throws InputError unless blocks ascend and are disjoint.
  explicit BlockTable(std::vector<std::uint64_t> words, std::uint32_t first = 0);

  Blocks blocks() const noexcept { return blocks_; }
  /// Blocks begin .. end - 1, with their coordinates and numbers. Throws InputError unless begin <= end <= size.
  BlockTable part(std::size_t begin, std::size_t end) const;
  /// The same coordinates with other numbers.
  BlockTable numbered(std::uint32_t first) const;
  /// Whether both have the same words in memory.
  bool shares_words(const BlockTable& other) const noexcept;

 private:
  BlockTable(std::shared_ptr<const std::vector<std::uint64_t>> words, Blocks blocks)
      : words_(std::move(words)), blocks_(blocks) {}

  std::shared_ptr<const std::vector<std::uint64_t>> words_;
  Blocks blocks_;  // of words_
};

}  // namespace thc
