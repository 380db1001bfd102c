#include "thc/block_table.h"

#include <string>
#include <utility>

#include "thc/errors.h"

namespace thc {

BlockTable::BlockTable(std::vector<std::uint64_t> words, std::uint32_t first)
    : words_(std::make_shared<const std::vector<std::uint64_t>>(std::move(words))), blocks_{*words_, first} {
  const Blocks all = blocks();
  std::size_t behind = 0;
  for (std::size_t b = 0; b < all.size(); ++b) {
    if (all.coordinate(b) < behind || all.used(b) > kBlock) {
      throw InputError("blocks must ascend, be disjoint and have 64 coordinates or fewer, got " +
                       std::to_string(all.used(b)) + " from " + std::to_string(all.coordinate(b)) + " on, behind " +
                       std::to_string(behind));
    }
    behind = all.coordinate(b) + all.used(b);
  }
}

BlockTable BlockTable::part(std::size_t begin, std::size_t end) const {
  if (begin > end || end > blocks_.size()) {
    throw InputError("blocks: expected a range within 0 .. " + std::to_string(blocks_.size()) + ", got " +
                     std::to_string(begin) + " .. " + std::to_string(end));
  }
  return {words_, blocks_.part(begin, end - begin)};
}

BlockTable BlockTable::numbered(std::uint32_t first) const { return {words_, {blocks_.words, first}}; }

bool BlockTable::shares_words(const BlockTable& other) const noexcept {
  return blocks_.words.data() == other.blocks_.words.data() && blocks_.size() == other.blocks_.size();
}

}  // namespace thc
