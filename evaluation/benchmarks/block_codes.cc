// The kernels of evaluation/averages/blocks.py, a candidate among ranks: what they cost before the package has them.
// bench_blocks.py loads this as a library, and compares the bits with Python's.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "thc/bit_stream.h"
#include "thc/pack.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "block_codes.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "thc/code_store-inl.h"
#include "thc/hadamard-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thc {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using code_store::CodeWords;
using code_store::with_store;
using DI = hn::RebindToSigned<DF>;
using VI = hn::Vec<DI>;

constexpr std::size_t kBlock = 64;
constexpr std::size_t kTileBlocks = 16;  // have a common exponent
constexpr std::size_t kTileFloats = kTileBlocks * kBlock;
constexpr std::size_t kTileScales = 1 + kTileBlocks;  // bytes
constexpr std::size_t kVectors = kBlock / kLanes;
constexpr std::uint32_t kGolden = 0x9E3779B9U;
constexpr std::uint32_t kPlastic = 0xC13FA9A9U;
constexpr float kLeast = 0x1p-100F;
/// By bits: what is larger than so many rms is clipped. 0: nothing is.
constexpr float kClips[9] = {0, 0.9F, 1.5F, 2.2F, 0, 0, 0, 0, 0};

/// Where zero lies among the codes of block b, with its dither.
float middle_of(unsigned bits, std::uint32_t levels, std::size_t b) {
  const std::uint32_t level = levels + static_cast<std::uint32_t>(b) * kGolden;
  const float u = bits > 1 ? static_cast<float>(level >> 16) * 0x1p-16F - 0.5F : 0.0F;
  return static_cast<float>(1U << bits >> 1U) - 0.5F - u;
}

/// The signs of a block, for all blocks.
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

/// 16 blocks between the passes of encode_tile(); rotated: 4 KiB, in L1.
struct Tile {
  alignas(64) float rotated[kTileFloats];
  alignas(64) float largest[kTileBlocks];
  alignas(64) float squares[kTileBlocks];
  alignas(64) float inverse[kTileBlocks];
  alignas(64) float scale[kTileBlocks];
};

HWY_INLINE void rotate_tile(const float* x, std::size_t blocks, const SignBits& signs, bool clips, Tile& tile) {
  const DF d;
  for (std::size_t b = 0; b < blocks; ++b) {
    VF v[kVectors];
#pragma GCC unroll 16
    for (std::size_t i = 0; i < kVectors; ++i) {
      v[i] = signs.flip(hn::LoadU(d, x + b * kBlock + i * kLanes), i * kLanes);
    }
    rotate(v);
    VF largest = hn::Abs(v[0]);
#pragma GCC unroll 16
    for (std::size_t i = 0; i < kVectors; ++i) {
      hn::Store(v[i], d, tile.rotated + b * kBlock + i * kLanes);
      largest = hn::Max(largest, hn::Abs(v[i]));
    }
    tile.largest[b] = hn::GetLane(hn::MaxOfLanes(d, largest));
    if (clips) {
#pragma GCC unroll 16
      for (std::size_t i = 0; i < kVectors; ++i) {
        v[i] = hn::Mul(v[i], v[i]);
      }
      tile.squares[b] = folded(v);
    }
  }
  std::fill(tile.largest + blocks, tile.largest + kTileBlocks, 0.0F);
  std::fill(tile.squares + (clips ? blocks : 0), tile.squares + kTileBlocks, 0.0F);
}

/// Steps between levels, before DRIVE's factor, in tile.scale.
HWY_INLINE void choose_steps(unsigned bits, Tile& tile) {
  const DF d;
  const float clip = kClips[bits] / 8;
  for (std::size_t b = 0; b < kTileBlocks; b += kLanes) {
    const VF largest = hn::Load(d, tile.largest + b);
    VF reach = largest;
    if (clip > 0) reach = hn::Min(largest, hn::Mul(hn::Set(d, clip), hn::Sqrt(hn::Load(d, tile.squares + b))));
    const auto is_zero = hn::Lt(largest, hn::Set(d, kLeast));
    const VF levels = hn::Set(d, static_cast<float>(1U << bits >> 1U) - 0.5F);
    const VF step = hn::IfThenElse(is_zero, hn::Set(d, 1.0F), hn::Div(reach, levels));
    hn::Store(hn::Div(hn::Set(d, 1.0F), step), d, tile.inverse + b);
    hn::Store(hn::IfThenZeroElse(is_zero, step), d, tile.scale + b);
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

/// Rounds scales at random; see blocks.py. random: of the first.
HWY_INLINE void put_scales(const float* scale, std::uint32_t random, std::uint8_t* out) {
  std::int32_t floats[kTileBlocks];
  std::int32_t most = 0;
  for (std::size_t b = 0; b < kTileBlocks; ++b) {
    const std::uint32_t chance = random + static_cast<std::uint32_t>(b) * kPlastic;
    const auto bits = std::bit_cast<std::uint32_t>(scale[b]);
    floats[b] = static_cast<std::int32_t>((bits + (chance >> 13)) >> 19);
    most = std::max(most, bits == 0 ? 0 : floats[b]);
  }
  const std::int32_t base = most >> 4;
  const std::int32_t lowest = std::max(base - 15, 0) << 4;
  const auto least = std::bit_cast<float>((lowest + 1) << 19);
  const float unit = 0x1p-24F * least;
  out[0] = static_cast<std::uint8_t>(base);
  for (std::size_t b = 0; b < kTileBlocks; ++b) {
    const std::uint32_t chance = random + static_cast<std::uint32_t>(b) * kPlastic;
    const std::int32_t rare = static_cast<float>(chance >> 8) * unit < scale[b] ? 1 : 0;
    out[1 + b] = static_cast<std::uint8_t>(scale[b] >= least ? floats[b] - lowest : rare);
  }
}

template <bool kClip>
HWY_INLINE void encode_tile(const float* x, std::size_t blocks, unsigned bits, const SignBits& signs,
                            std::uint32_t levels, std::uint32_t random, std::uint8_t* codes, std::uint8_t* scales) {
  Tile tile;
  rotate_tile(x, blocks, signs, kClip, tile);
  choose_steps(bits, tile);
  const VI top = hn::Set(DI(), (1 << bits) - 1);
  with_store(kTileFloats, bits, codes, [&](const auto& store) HWY_ATTR {
    for (std::size_t b = 0; b < blocks; ++b) {
      const float dot = round_block<kClip>(tile, b, middle_of(bits, levels, b), top, store);
      if (kClip && kClips[bits] / 8 * std::sqrt(tile.squares[b]) < tile.largest[b] && tile.scale[b] > 0) {
        tile.scale[b] = tile.squares[b] / std::max(dot, kLeast);
      }
    }
  });
  put_scales(tile.scale, random, scales);
}

HWY_ATTR void encode(const float* x, std::size_t blocks, unsigned bits, std::uint64_t mask, std::uint32_t levels,
                     std::uint32_t random, std::uint8_t* codes, std::uint8_t* scales) {
  const SignBits signs(mask);
  for (std::size_t first = 0; first < blocks; first += kTileBlocks) {
    const auto number = static_cast<std::uint32_t>(first);
    const auto tile = [&](auto clip) HWY_ATTR {
      encode_tile<clip()>(x + first * kBlock, std::min(blocks - first, kTileBlocks), bits, signs,
                          levels + number * kGolden, random + number * kPlastic,
                          codes + code_bytes(first * kBlock, bits), scales + first / kTileBlocks * kTileScales);
    };
    kClips[bits] > 0 ? tile(std::true_type()) : tile(std::false_type());
  }
}

/// A rank's part of a block's average, in v; added to what is there if there is any.
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

HWY_ATTR void decode(const std::uint8_t* codes, const std::uint8_t* scales, const std::uint32_t* levels,
                     std::size_t ranks, std::size_t blocks, unsigned bits, std::uint64_t mask, float* out) {
  const DF d;
  const SignBits signs(mask);
  const auto divisor = static_cast<float>(kBlock * ranks);
  const std::size_t tiles = (blocks + kTileBlocks - 1) / kTileBlocks;
  alignas(64) float sum[kTileFloats];
  alignas(64) std::uint8_t unpacked[kTileFloats];
  for (std::size_t first = 0; first < blocks; first += kTileBlocks) {
    const std::size_t count = std::min(blocks - first, kTileBlocks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      thc::unpack(codes + rank * code_bytes(blocks * kBlock, bits) + code_bytes(first * kBlock, bits), count * kBlock,
                  bits, unpacked);
      const std::uint8_t* bytes = scales + (rank * tiles + first / kTileBlocks) * kTileScales;
      const std::int32_t lowest = (bytes[0] - 15) * 16;
      for (std::size_t b = 0; b < count; ++b) {
        const float scale = bytes[1 + b] == 0 ? 0.0F : std::bit_cast<float>((bytes[1 + b] + lowest) << 19);
        float* others = sum + b * kBlock;
        VF v[kVectors];
        add_block(unpacked + b * kBlock, middle_of(bits, levels[rank], first + b), scale / divisor,
                  rank == 0 ? nullptr : others, v);
        if (rank + 1 == ranks) {
          rotate(v);
#pragma GCC unroll 16
          for (std::size_t i = 0; i < kVectors; ++i) {
            hn::StoreU(signs.flip(v[i], i * kLanes), d, out + (first + b) * kBlock + i * kLanes);
          }
        } else {
#pragma GCC unroll 16
          for (std::size_t i = 0; i < kVectors; ++i) {
            hn::Store(v[i], d, others + i * kLanes);
          }
        }
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace thc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thc {

HWY_EXPORT(encode);
HWY_EXPORT(decode);

// mask: 64 signs. levels, random: numbers of the first block, of its levels and scales. codes: packed; scales: 17 bytes
// for 16 blocks, the common exponent first. Codes and scales of several ranks lie one after the other.
extern "C" void encode_blocks(const float* x, std::size_t blocks, unsigned bits, std::uint64_t mask,
                              std::uint32_t levels, std::uint32_t random, std::uint8_t* codes, std::uint8_t* scales) {
  HWY_DYNAMIC_DISPATCH(encode)(x, blocks, bits, mask, levels, random, codes, scales);
}

extern "C" void decode_blocks(const std::uint8_t* codes, const std::uint8_t* scales, const std::uint32_t* levels,
                              std::size_t ranks, std::size_t blocks, unsigned bits, std::uint64_t mask, float* out) {
  HWY_DYNAMIC_DISPATCH(decode)(codes, scales, levels, ranks, blocks, bits, mask, out);
}

}  // namespace thc
#endif
