#include "thc/threaded_kernels.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <vector>

#include "thc/bit_stream.h"
#include "thc/encode.h"
#include "thc/rotation.h"

namespace thc::threaded {
namespace {

// Fewest coordinates of a range: what takes one thread 50 us or more with AVX-512, because waking a helper and being
// woken by it costs a call about as much. Encoding takes 100 us: the last tile of a range is not prefetched.
constexpr std::size_t kLeastToEncode = std::size_t{1} << 17;
constexpr std::size_t kLeastToDecode = std::size_t{1} << 18;
constexpr std::size_t kLeastToMeasure = std::size_t{1} << 19;
constexpr std::size_t kLeastToRecode = std::size_t{1} << 16;

/// Ranges of one call per thread: more than one, so that a thread that comes late or is interrupted gets fewer.
constexpr std::size_t kRangesPerThread = 4;

constexpr std::size_t divide_up(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

/// Calls work(first, size) for ranges that together are 0 .. count - 1. Every range begins at a multiple of `unit` and,
/// unless there is only one, has `least` coordinates or more; the last one may have fewer.
template <class Work>
void for_each_range(ThreadPool* pool, std::size_t count, std::size_t unit, std::size_t least, const Work& work) {
  const std::size_t most_ranges = pool == nullptr || pool->threads() == 1 ? 1 : kRangesPerThread * pool->threads();
  const std::size_t even = divide_up(count, std::clamp<std::size_t>(count / least, 1, most_ranges));
  const std::size_t range = divide_up(even, unit) * unit;
  if (count <= range) {
    work(0, count);
    return;
  }
  const auto task = [&](std::size_t i) { work(i * range, std::min(range, count - i * range)); };
  pool->for_each(divide_up(count, range), std::ref(task));
}

/// for_each_range with the rotation blocks of each range as a partition of their own: work(first coordinate, first
/// block, layout).
template <class Work>
void for_each_part(ThreadPool* pool, const BlockLayout& layout, std::size_t least, const Work& work) {
  for_each_range(pool, layout.coordinates(), layout.rotation_block(), least, [&](std::size_t first, std::size_t size) {
    const std::size_t begin = layout.block_from(first);
    const std::size_t end = first + size == layout.coordinates() ? layout.blocks() : layout.block_from(first + size);
    work(layout.offset(begin), begin, layout.part(begin, end));
  });
}

/// for_each_range of blocks: work(first block, blocks). `least`: codes of a range.
template <class Work>
void for_each_blocks(ThreadPool* pool, Blocks blocks, std::size_t least, const Work& work) {
  if (blocks.empty()) return;
  const std::size_t start = blocks.front().offset;
  const std::size_t codes = blocks.back().offset + blocks.back().size - start;
  const auto block_from = [&](std::size_t code) {
    const auto begins_before = [](const RotationBlock& block, std::size_t offset) { return block.offset < offset; };
    return static_cast<std::size_t>(std::lower_bound(blocks.begin(), blocks.end(), start + code, begins_before) -
                                    blocks.begin());
  };
  for_each_range(pool, codes, kMinRotationBlock, least, [&](std::size_t first, std::size_t size) {
    const std::size_t begin = block_from(first);
    const std::size_t end = block_from(first + size);
    if (begin < end) work(begin, blocks.subspan(begin, end - begin));
  });
}

/// Codes of the same ranks from block `begin` on.
std::vector<NearestCodes> codes_from(std::span<const NearestCodes> ranks, unsigned bits, Blocks blocks,
                                     std::size_t begin) {
  std::vector<NearestCodes> part(ranks.begin(), ranks.end());
  for (NearestCodes& rank : part) {
    rank.codes += code_bytes(blocks[begin].offset - blocks[0].offset, bits);
    rank.scales += begin;
  }
  return part;
}

}  // namespace

void block_norms(ThreadPool* pool, ConstFloats gradient, const float* residual, const BlockLayout& layout,
                 float* norms) {
  for_each_part(pool, layout, kLeastToMeasure, [&](std::size_t first, std::size_t block, const BlockLayout& part) {
    thc::block_norms(gradient + first, residual == nullptr ? nullptr : residual + first, part, norms + block);
  });
}

std::size_t encode(ThreadPool* pool, ConstFloats gradient, float* residual, const float* max_norms,
                   const BlockLayout& layout, const LookupTable& table, const QuantizeOptions& options,
                   std::uint8_t* codes) {
  std::atomic<std::size_t> clamped = 0;
  for_each_part(pool, layout, kLeastToEncode, [&](std::size_t first, std::size_t block, const BlockLayout& part) {
    QuantizeOptions here = options;
    here.key.first += first;
    clamped += thc::encode(gradient + first, residual == nullptr ? nullptr : residual + first, max_norms + block, part,
                           table, here, codes + code_bytes(first, table.bits()));
  });
  return clamped;
}

void decode(ThreadPool* pool, const Aggregate& aggregate, const BlockLayout& layout, const RandomKey& key, Floats out) {
  for_each_part(pool, layout, kLeastToDecode, [&](std::size_t first, std::size_t block, const BlockLayout& part) {
    Aggregate here = aggregate;
    here.sums = static_cast<const std::uint8_t*>(aggregate.sums) + first * aggregate.value_bits / 8;
    here.first += first;
    here.max_norms += block;
    RandomKey here_key = key;
    here_key.first += first;
    thc::decode(here, part, here_key, out + first);
  });
}

void encode_nearest(ThreadPool* pool, ConstFloats gradient, Blocks blocks, const RandomKey& key, Hop hop,
                    const NearestPoints& points, std::uint8_t* codes, float* scales) {
  for_each_blocks(pool, blocks, kLeastToEncode, [&](std::size_t begin, Blocks part) {
    thc::encode_nearest(gradient + (part[0].coordinate - blocks[0].coordinate), part, key, hop, points,
                        codes + code_bytes(part[0].offset - blocks[0].offset, points.bits()), scales + begin);
  });
}

void decode_nearest(ThreadPool* pool, std::span<const NearestCodes> ranks, unsigned bits, Blocks blocks,
                    const RandomKey& key, Hop hop, Floats out) {
  for_each_blocks(pool, blocks, kLeastToDecode / ranks.size(), [&](std::size_t begin, Blocks part) {
    thc::decode_nearest(codes_from(ranks, bits, blocks, begin), bits, part, key, hop,
                        out + (part[0].coordinate - blocks[0].coordinate));
  });
}

void recode_nearest(ThreadPool* pool, std::span<const NearestCodes> ranks, unsigned bits, Blocks blocks,
                    const RandomKey& key, const NearestPoints& down, std::uint8_t* codes, float* scales) {
  for_each_blocks(pool, blocks, kLeastToRecode, [&](std::size_t begin, Blocks part) {
    thc::recode_nearest(codes_from(ranks, bits, blocks, begin), bits, part, key, down,
                        codes + code_bytes(part[0].offset - blocks[0].offset, down.bits()), scales + begin);
  });
}

}  // namespace thc::threaded
