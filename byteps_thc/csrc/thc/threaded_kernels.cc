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

/// for_each_range of tiles: work(first block, blocks). `least`: coordinates of a range.
template <class Work>
void for_each_tiles(ThreadPool* pool, Blocks blocks, std::size_t least, const Work& work) {
  if (blocks.size() == 0) return;
  for_each_range(pool, blocks.size() * kBlock, kTileBlocks * kBlock, least, [&](std::size_t first, std::size_t size) {
    work(first / kBlock, blocks.part(first / kBlock, size / kBlock));
  });
}

/// Codes of the same ranks from block `begin` on.
std::vector<BlockCodes> codes_from(std::span<const BlockCodes> ranks, unsigned bits, std::size_t begin) {
  std::vector<BlockCodes> part(ranks.begin(), ranks.end());
  for (BlockCodes& rank : part) {
    rank.codes += code_bytes(begin * kBlock, bits);
    rank.scales += scale_bytes(begin);
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

void encode_blocks(ThreadPool* pool, ConstFloats gradient, Blocks blocks, const BlockRandom& random, unsigned bits,
                   std::uint8_t* codes, std::uint8_t* scales) {
  for_each_tiles(pool, blocks, kLeastToEncode, [&](std::size_t begin, Blocks part) {
    thc::encode_blocks(gradient, part, random, bits, codes + code_bytes(begin * kBlock, bits),
                       scales + scale_bytes(begin));
  });
}

void decode_blocks(ThreadPool* pool, std::span<const BlockCodes> ranks, Blocks blocks, const BlockRandom& random,
                   unsigned bits, Floats out) {
  for_each_tiles(pool, blocks, kLeastToDecode / ranks.size(), [&](std::size_t begin, Blocks part) {
    thc::decode_blocks(codes_from(ranks, bits, begin), part, random, bits, out);
  });
}

void recode_blocks(ThreadPool* pool, std::span<const BlockCodes> ranks, Blocks blocks, const BlockRandom& up,
                   unsigned bits, const BlockRandom& down, unsigned down_bits, std::uint8_t* codes,
                   std::uint8_t* scales) {
  for_each_tiles(pool, blocks, kLeastToRecode, [&](std::size_t begin, Blocks part) {
    thc::recode_blocks(codes_from(ranks, bits, begin), part, up, bits, down, down_bits,
                       codes + code_bytes(begin * kBlock, down_bits), scales + scale_bytes(begin));
  });
}

}  // namespace thc::threaded
