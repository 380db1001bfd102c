#include "thc/block_codes.h"

#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include "thc/pack.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thc/block_codes.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "thc/code_store-inl.h"
#include "thc/hadamard-inl.h"
#include "thc/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thc {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using code_store::CodeWords;
using code_store::with_store;
using DI = hn::RebindToSigned<DF>;
using VI = hn::Vec<DI>;

constexpr std::size_t kTileFloats = kTileBlocks * kBlock;
constexpr std::size_t kVectors = kBlock / kLanes;
/// Fractions of the golden ratio and of the plastic number's inverse: points of these sequences keep their distance.
constexpr std::uint32_t kGolden = 0x9E3779B9U;
constexpr std::uint32_t kPlastic = 0xC13FA9A9U;
/// Largest values of a block that is encoded: nothing on the way over- or underflows.
constexpr float kLeast = 0x1p-100F;
constexpr float kMost = 0x1p+100F;
/// Scales have 4 bits of mantissa, and 4 of exponent, up to 14 below the tile's largest.
constexpr unsigned kDropped = 19;
constexpr std::int32_t kExponents = 14;
/// In place of a scale, which is at most 239.
constexpr std::uint8_t kNotFinite = 255;
/// By bits: root mean squares at which coordinates are clipped, for little error of normal ones; 0: no clipping.
constexpr float kClips[kMaxBlockBits + 1] = {0, 0.9F, 1.5F, 2.2F, 0, 0, 0, 0, 0};

/// Philox block 0 of a domain.
HWY_ATTR void random_words(const RandomKey& key, std::uint32_t domain, std::uint32_t (&words)[4]) {
  const auto lanes = PhiloxStream<kSignRounds>(key, domain).blocks(hn::ScalableTag<std::uint64_t>(), 0);
  for (std::size_t w = 0; w < 4; ++w) {
    words[w] = static_cast<std::uint32_t>(hn::GetLane(lanes.word[w]));
  }
}

/// Zero among the codes of block b, with its dither. A code of 1 bit is a sign, without dither.
float middle_of(unsigned bits, std::uint32_t levels, std::size_t b) {
  const std::uint32_t level = levels + static_cast<std::uint32_t>(b) * kGolden;
  const float u = bits > 1 ? static_cast<float>(level >> 16) * 0x1p-16F - 0.5F : 0.0F;
  return static_cast<float>(1U << bits >> 1U) - 0.5F - u;
}

/// The signs of a block as floats' sign bits.
class SignBits {
 public:
  explicit SignBits(std::uint64_t mask) {
    for (std::size_t i = 0; i < kBlock; ++i) {
      bits_[i] = std::bit_cast<float>(static_cast<std::uint32_t>(mask >> i & 1U) << 31);
    }
  }
  HWY_INLINE VF flip(VF v, std::size_t i) const { return hn::Xor(v, hn::Load(DF(), bits_ + i)); }

 private:
  alignas(64) float bits_[kBlock];
};

HWY_INLINE void rotate(VF (&v)[kVectors]) {
#pragma GCC unroll 16
  for (std::size_t i = 0; i < kVectors; ++i) {
    v[i] = butterflies_in_vector(v[i]);
  }
  butterflies(v);
}

/// Halves are added until one number is left: the same bits on all instruction sets.
template <std::size_t kCount>
HWY_INLINE float folded(const VF (&v)[kCount]) {
  if constexpr (kCount > 1) {
    VF half[kCount / 2];
#pragma GCC unroll 8
    for (std::size_t i = 0; i < kCount / 2; ++i) {
      half[i] = hn::Add(v[i], v[i + kCount / 2]);
    }
    return folded(half);
  } else {
    VF sum = v[0];
    if constexpr (kLanes >= 16) sum = hn::Add(sum, swap_lanes<8>(sum));
    if constexpr (kLanes >= 8) sum = hn::Add(sum, swap_lanes<4>(sum));
    sum = hn::Add(sum, swap_lanes<2>(sum));
    return hn::GetLane(hn::Add(sum, swap_lanes<1>(sum)));
  }
}

/// A tile between the passes of its encoder. rotated: 4 KiB, in L1.
struct Tile {
  alignas(64) float rotated[kTileFloats];
  alignas(64) float largest[kTileBlocks];
  alignas(64) float squares[kTileBlocks];
  alignas(64) float reach[kTileBlocks];
  alignas(64) float inverse[kTileBlocks];
  alignas(64) float scale[kTileBlocks];
};

/// x: `blocks` blocks, one after the other.
HWY_INLINE void rotate_tile(const float* x, std::size_t blocks, const SignBits& signs, bool clips, Tile& tile) {
  const DF d;
  for (std::size_t b = 0; b < blocks; ++b) {
    VF v[kVectors];
#pragma GCC unroll 16
    for (std::size_t i = 0; i < kVectors; ++i) {
      v[i] = signs.flip(hn::LoadU(d, x + b * kBlock + i * kLanes), i * kLanes);
    }
    rotate(v);
    VI largest = hn::Zero(DI());
#pragma GCC unroll 16
    for (std::size_t i = 0; i < kVectors; ++i) {
      hn::Store(v[i], d, tile.rotated + b * kBlock + i * kLanes);
      largest = hn::Max(largest, hn::BitCast(DI(), hn::Abs(v[i])));  // as integers: a NaN is the largest
    }
    tile.largest[b] = std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(DI(), largest)));
    if (clips) {
#pragma GCC unroll 16
      for (std::size_t i = 0; i < kVectors; ++i) {
        v[i] = hn::Mul(v[i], v[i]);
      }
      tile.squares[b] = folded(v);
    }
  }
  std::fill(tile.largest + blocks, tile.largest + kTileBlocks, 0.0F);
  std::fill(tile.squares + blocks, tile.squares + kTileBlocks, 0.0F);
}

/// tile.scale: steps, before DRIVE's factor, rounded up to a scale's mantissa, so that rounding clips nothing. Zero and
/// non-finite blocks have steps of 1 and scales of 0.
HWY_INLINE void choose_steps(unsigned bits, Tile& tile) {
  const DF d;
  const float clip = kClips[bits] / 8;
  for (std::size_t b = 0; b < kTileBlocks; b += kLanes) {
    const VF largest = hn::Load(d, tile.largest + b);
    VF reach = largest;
    if (clip > 0) {
      const VF squares = hn::Load(d, tile.squares + b);
      const auto fits = hn::And(hn::Ge(squares, hn::Set(d, kLeast)), hn::Le(squares, hn::Set(d, kMost)));
      reach = hn::IfThenElse(fits, hn::Min(largest, hn::Mul(hn::Set(d, clip), hn::Sqrt(squares))), largest);
    }
    const auto has_scale = hn::And(hn::Ge(largest, hn::Set(d, kLeast)), hn::Le(largest, hn::Set(d, kMost)));
    const VF levels = hn::Set(d, static_cast<float>(1U << bits >> 1U) - 0.5F);
    const VI exact = hn::BitCast(DI(), hn::Div(reach, levels));
    const VI dropped = hn::Set(DI(), (1 << kDropped) - 1);
    const VF rounded = hn::BitCast(d, hn::AndNot(dropped, hn::Add(exact, dropped)));
    const VF step = hn::IfThenElse(has_scale, rounded, hn::Set(d, 1.0F));
    hn::Store(reach, d, tile.reach + b);
    hn::Store(hn::Div(hn::Set(d, 1.0F), step), d, tile.inverse + b);
    hn::Store(hn::IfThenElseZero(has_scale, step), d, tile.scale + b);
  }
}

/// Codes of block b; returns <rotated, decoded>, in steps, if asked to.
template <bool kDot, class Store>
HWY_INLINE float round_block(const Tile& tile, std::size_t b, float middle, VI top, const Store& store) {
  const DF d;
  const VF inverse = hn::Set(d, tile.inverse[b]);
  const VF zero = hn::Set(d, middle);
  const VF rounds = hn::Set(d, middle + 0.5F);
  VF products[kVectors];
#pragma GCC unroll 4
  for (std::size_t part = 0; part < 16 / kLanes; ++part) {
    CodeWords codes;
#pragma GCC unroll 4
    for (std::size_t w = 0; w < 4; ++w) {
      const std::size_t i = 16 * w + part * kLanes;
      const VF y = hn::Load(d, tile.rotated + b * kBlock + i);
      const VF level = hn::Max(hn::Add(hn::Mul(y, inverse), rounds), hn::Zero(d));
      codes.word[w] = hn::Min(hn::ConvertTo(DI(), level), top);
      if constexpr (kDot) products[i / kLanes] = hn::Mul(y, hn::Sub(hn::ConvertTo(d, codes.word[w]), zero));
    }
    store(b * kBlock + part * kLanes, codes);
  }
  if constexpr (kDot) return folded(products);
  return 0;
}

/// Rounds scales with DRIVE's factor at random; others are exact. chances: of the first block.
HWY_INLINE void put_scales(const float* scale, std::uint32_t chances, std::uint8_t* out) {
  std::int32_t floats[kTileBlocks];
  std::int32_t most = 0;
  for (std::size_t b = 0; b < kTileBlocks; ++b) {
    const std::uint32_t chance = chances + static_cast<std::uint32_t>(b) * kPlastic;
    const auto bits = std::bit_cast<std::uint32_t>(scale[b]);
    floats[b] = static_cast<std::int32_t>((bits + (chance >> (32 - kDropped))) >> kDropped);
    most = std::max(most, bits == 0 ? 0 : floats[b]);
  }
  const std::int32_t base = most >> 4;
  const std::int32_t lowest = std::max(base - kExponents, 0) << 4;
  const auto least = std::bit_cast<float>((lowest + 1) << kDropped);
  const float unit = 0x1p-24F * least;
  out[0] = static_cast<std::uint8_t>(base);
  for (std::size_t b = 0; b < kTileBlocks; ++b) {
    const std::uint32_t chance = chances + static_cast<std::uint32_t>(b) * kPlastic;
    const std::int32_t rare = static_cast<float>(chance >> 8) * unit < scale[b] ? 1 : 0;
    out[1 + b] = static_cast<std::uint8_t>(scale[b] >= least ? floats[b] - lowest : rare);
  }
}

/// Encodes tiles, one after the other.
class TileEncoder {
 public:
  TileEncoder(const BlockRandom& random, unsigned bits) : signs_(random.signs), random_(random), bits_(bits) {}

  /// number: of the tile's first block.
  HWY_INLINE void encode(const float* x, std::size_t blocks, std::uint32_t number, std::uint8_t* codes,
                         std::uint8_t* scales) {
    if (kClips[bits_] > 0) {
      encode_as<true>(x, blocks, number, codes, scales);
    } else {
      encode_as<false>(x, blocks, number, codes, scales);
    }
  }

 private:
  template <bool kClip>
  HWY_INLINE void encode_as(const float* x, std::size_t blocks, std::uint32_t number, std::uint8_t* codes,
                            std::uint8_t* scales) {
    const unsigned bits = bits_;
    const std::uint32_t levels = random_.levels + number * kGolden;
    rotate_tile(x, blocks, signs_, kClip, tile_);
    choose_steps(bits, tile_);
    const VI top = hn::Set(DI(), (1 << bits) - 1);
    with_store(blocks * kBlock, bits, codes, [&](const auto& store) HWY_ATTR {
      for (std::size_t b = 0; b < blocks; ++b) {
        const float dot = round_block<kClip>(tile_, b, middle_of(bits, levels, b), top, store);
        if (kClip && tile_.reach[b] < tile_.largest[b]) {
          tile_.scale[b] = tile_.squares[b] / std::max(dot, kLeast);
        }
      }
    });
    put_scales(tile_.scale, random_.chances + number * kPlastic, scales);
    for (std::size_t b = 0; b < blocks; ++b) {
      if (tile_.largest[b] <= kMost) continue;
      scales[1 + b] = kNotFinite;
      std::memset(codes + code_bytes(b * kBlock, bits), 0, code_bytes(kBlock, bits));
    }
  }

  Tile tile_;
  SignBits signs_;
  BlockRandom random_;
  unsigned bits_;
};

/// The floats of a tile, copied to `staging` unless they are contiguous fp32.
HWY_INLINE const float* load_tile(ConstFloats gradient, Blocks tile, float* staging) {
  if (tile.is_whole()) {
    const ConstFloats from = gradient + tile.coordinate(0);
    if (from.format == FloatFormat::kFp32) return static_cast<const float*>(from.data);
    thc::to_fp32(from, tile.size() * kBlock, staging);
    return staging;
  }
  for (std::size_t b = 0; b < tile.size(); ++b) {
    float* x = staging + b * kBlock;
    thc::to_fp32(gradient + tile.coordinate(b), tile.used(b), x);
    std::fill(x + tile.used(b), x + kBlock, 0.0F);
  }
  return staging;
}

HWY_ATTR void encode_blocks(ConstFloats gradient, Blocks blocks, const BlockRandom& random, unsigned bits,
                            std::uint8_t* codes, std::uint8_t* scales) {
  TileEncoder encoder(random, bits);
  alignas(64) float staging[kTileFloats];
  for (std::size_t begin = 0; begin < blocks.size(); begin += kTileBlocks) {
    const Blocks tile = blocks.tile(begin);
    encoder.encode(load_tile(gradient, tile, staging), tile.size(), tile.first,
                   codes + code_bytes(begin * kBlock, bits), scales + scale_bytes(begin));
  }
}

/// v = a rank's part of a block's average, plus `others` if not null.
HWY_INLINE void add_block(const std::uint8_t* codes, float middle, float factor, const float* others,
                          VF (&v)[kVectors]) {
  const DF d;
  const hn::Rebind<std::uint8_t, DF> d8;
#pragma GCC unroll 16
  for (std::size_t i = 0; i < kVectors; ++i) {
    const VI levels = hn::PromoteTo(DI(), hn::LoadU(d8, codes + i * kLanes));
    v[i] = hn::Mul(hn::Sub(hn::ConvertTo(d, levels), hn::Set(d, middle)), hn::Set(d, factor));
    if (others != nullptr) v[i] = hn::Add(hn::Load(d, others + i * kLanes), v[i]);
  }
}

/// Averages tiles of ranks.
class TileDecoder {
 public:
  TileDecoder(std::span<const BlockCodes> ranks, const BlockRandom& random, unsigned bits)
      : ranks_(ranks), random_(random), bits_(bits), signs_(random.signs) {}

  /// begin: first block of the tile among ranks_. number: of this block in the gradient. out: kTileFloats.
  HWY_INLINE void decode(std::size_t begin, std::size_t blocks, std::uint32_t number, float* out) {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      thc::unpack(ranks_[rank].codes + code_bytes(begin * kBlock, bits_), blocks * kBlock, bits_, codes_);
      add(rank, ranks_[rank].scales + scale_bytes(begin), blocks, number, out);
    }
  }

 private:
  HWY_INLINE void add(std::size_t rank, const std::uint8_t* scales, std::size_t blocks, std::uint32_t number,
                      float* out) {
    const DF d;
    const std::uint32_t levels = random_.of_rank(rank, ranks_.size()).levels + number * kGolden;
    const auto divisor = static_cast<float>(kBlock * ranks_.size());
    const std::int32_t lowest = (scales[0] - kExponents) * 16;
    for (std::size_t b = 0; b < blocks; ++b) {
      const std::int32_t byte = scales[1 + b];
      float scale = byte == 0 ? 0.0F : std::bit_cast<float>((byte + lowest) << kDropped);
      if (byte == kNotFinite) scale = std::numeric_limits<float>::quiet_NaN();
      const float* others = rank == 0 ? nullptr : sum_ + b * kBlock;
      VF v[kVectors];
      add_block(codes_ + b * kBlock, middle_of(bits_, levels, b), scale / divisor, others, v);
      if (rank + 1 < ranks_.size()) {
#pragma GCC unroll 16
        for (std::size_t i = 0; i < kVectors; ++i) {
          hn::Store(v[i], d, sum_ + b * kBlock + i * kLanes);
        }
        continue;
      }
      rotate(v);
#pragma GCC unroll 16
      for (std::size_t i = 0; i < kVectors; ++i) {
        hn::StoreU(signs_.flip(v[i], i * kLanes), d, out + b * kBlock + i * kLanes);
      }
    }
  }

  std::span<const BlockCodes> ranks_;
  BlockRandom random_;
  unsigned bits_;
  SignBits signs_;
  alignas(64) float sum_[kTileFloats];
  alignas(64) std::uint8_t codes_[kTileFloats];
};

/// Sum of the bits of blocks. NaN counts as 0: its bits depend on the processor.
HWY_INLINE std::uint32_t sum_of_bits(const float* x, std::size_t blocks) {
  const DF d;
  const hn::RebindToUnsigned<DF> du;
  auto sum = hn::Zero(du);
  for (std::size_t i = 0; i < blocks * kBlock; i += kLanes) {
    const VF v = hn::LoadU(d, x + i);
    sum = hn::Add(sum, hn::BitCast(du, hn::IfThenZeroElse(hn::IsNaN(v), v)));
  }
  // GCC's _mm512_reduce_add_epi32, which SumOfLanes uses, overflows as an int: undefined.
  alignas(64) std::uint32_t lanes[kLanes];
  hn::Store(sum, du, lanes);
  return std::accumulate(lanes, lanes + kLanes, std::uint32_t{0});
}

HWY_ATTR std::uint32_t decode_blocks(std::span<const BlockCodes> ranks, Blocks blocks, const BlockRandom& random,
                                     unsigned bits, Floats out) {
  TileDecoder decoder(ranks, random, bits);
  std::uint32_t sum = 0;
  alignas(64) float staging[kTileFloats];
  for (std::size_t begin = 0; begin < blocks.size(); begin += kTileBlocks) {
    const Blocks tile = blocks.tile(begin);
    const bool in_place = out.format == FloatFormat::kFp32 && tile.is_whole();
    float* average = in_place ? static_cast<float*>((out + tile.coordinate(0)).data) : staging;
    decoder.decode(begin, tile.size(), tile.first, average);
    sum += sum_of_bits(average, tile.size());
    for (std::size_t b = 0; !in_place && b < tile.size(); ++b) {
      thc::from_fp32(staging + b * kBlock, tile.used(b), out + tile.coordinate(b));
    }
  }
  return sum;
}

HWY_ATTR void recode_blocks(std::span<const BlockCodes> ranks, Blocks blocks, const BlockRandom& up, unsigned bits,
                            const BlockRandom& down, unsigned down_bits, std::uint8_t* codes, std::uint8_t* scales) {
  TileDecoder decoder(ranks, up, bits);
  TileEncoder encoder(down, down_bits);
  alignas(64) float average[kTileFloats];
  for (std::size_t begin = 0; begin < blocks.size(); begin += kTileBlocks) {
    const Blocks tile = blocks.tile(begin);
    decoder.decode(begin, tile.size(), tile.first, average);
    for (std::size_t b = 0; b < tile.size(); ++b) {
      std::fill(average + b * kBlock + tile.used(b), average + (b + 1) * kBlock, 0.0F);
    }
    encoder.encode(average, tile.size(), tile.first, codes + code_bytes(begin * kBlock, down_bits),
                   scales + scale_bytes(begin));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace thc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thc {
HWY_EXPORT(random_words);
HWY_EXPORT(encode_blocks);
HWY_EXPORT(decode_blocks);
HWY_EXPORT(recode_blocks);

namespace {

// Fewest coordinates of a range: 50 us of a thread with AVX-512, the cost of waking a helper, and 100 us of encoding.
constexpr std::size_t kLeastToEncode = std::size_t{1} << 17;
constexpr std::size_t kLeastToDecode = std::size_t{1} << 18;
constexpr std::size_t kLeastToRecode = std::size_t{1} << 16;

/// for_each_range of tiles: work(first block, blocks). least: coordinates of a range.
template <class Work>
void for_each_tiles(ThreadPool* pool, Blocks blocks, std::size_t least, const Work& work) {
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

BlockRandom::BlockRandom(const RandomKey& key, std::uint32_t domain) {
  std::uint32_t words[4];
  HWY_DYNAMIC_DISPATCH(random_words)(key, domain, words);
  signs = words[0] | std::uint64_t{words[1]} << 32;
  levels = words[2];
  chances = words[3];
}

BlockRandom BlockRandom::of_rank(std::size_t rank, std::size_t ranks) const {
  const auto shift = static_cast<std::uint32_t>((std::uint64_t{1} << 32) / ranks * rank);
  BlockRandom own = *this;
  own.levels += shift;
  own.chances += shift;
  return own;
}

void encode_blocks(ThreadPool* pool, ConstFloats gradient, Blocks blocks, const BlockRandom& random, unsigned bits,
                   std::uint8_t* codes, std::uint8_t* scales) {
  for_each_tiles(pool, blocks, kLeastToEncode, [&](std::size_t begin, Blocks part) {
    std::uint8_t* packed = codes + code_bytes(begin * kBlock, bits);
    HWY_DYNAMIC_DISPATCH(encode_blocks)(gradient, part, random, bits, packed, scales + scale_bytes(begin));
  });
}

std::uint32_t decode_blocks(ThreadPool* pool, std::span<const BlockCodes> ranks, Blocks blocks,
                            const BlockRandom& random, unsigned bits, Floats out) {
  std::atomic<std::uint32_t> sum = 0;
  for_each_tiles(pool, blocks, kLeastToDecode / ranks.size(), [&](std::size_t begin, Blocks part) {
    sum += HWY_DYNAMIC_DISPATCH(decode_blocks)(codes_from(ranks, bits, begin), part, random, bits, out);
  });
  return sum;
}

void recode_blocks(ThreadPool* pool, std::span<const BlockCodes> ranks, Blocks blocks, const BlockRandom& up,
                   unsigned bits, const BlockRandom& down, unsigned down_bits, std::uint8_t* codes,
                   std::uint8_t* scales) {
  for_each_tiles(pool, blocks, kLeastToRecode, [&](std::size_t begin, Blocks part) {
    const std::vector<BlockCodes> own = codes_from(ranks, bits, begin);
    std::uint8_t* packed = codes + code_bytes(begin * kBlock, down_bits);
    HWY_DYNAMIC_DISPATCH(recode_blocks)(own, part, up, bits, down, down_bits, packed, scales + scale_bytes(begin));
  });
}

}  // namespace thc
#endif
