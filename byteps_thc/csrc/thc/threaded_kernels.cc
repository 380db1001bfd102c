#include "thc/threaded_kernels.h"

#include <atomic>
#include <vector>

#include "thc/bit_stream.h"
#include "thc/encode.h"
#include "thc/rotation.h"

namespace thc::threaded {
namespace {

// Fewest coordinates of a range: 50 us of a thread with AVX-512, the cost of waking a helper. Encoding has 100 us: the
// last tile of a range is not prefetched.
constexpr std::size_t kLeastToEncode = std::size_t{1} << 17;
constexpr std::size_t kLeastToDecode = std::size_t{1} << 18;
constexpr std::size_t kLeastToMeasure = std::size_t{1} << 19;
constexpr std::size_t kLeastToRecode = std::size_t{1} << 16;

/// for_each_range of rotation blocks: work(first coordinate, first block, layout of the range).
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

std::uint32_t decode_blocks(ThreadPool* pool, std::span<const BlockCodes> ranks, Blocks blocks,
                            const BlockRandom& random, unsigned bits, Floats out) {
  std::atomic<std::uint32_t> sum = 0;
  for_each_tiles(pool, blocks, kLeastToDecode / ranks.size(), [&](std::size_t begin, Blocks part) {
    sum += thc::decode_blocks(codes_from(ranks, bits, begin), part, random, bits, out);
  });
  return sum;
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
