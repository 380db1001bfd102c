#include "thc/nearest.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "thc/bit_stream.h"
#include "thc/nearest_scale.h"
#include "thc/pack.h"
#include "thc/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thc/nearest.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "thc/code_store-inl.h"
#include "thc/hadamard-inl.h"
#include "thc/lane_sums-inl.h"
#include "thc/nearest_search-inl.h"
#include "thc/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thc {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using code_store::CodeWords;
using code_store::kGroup;
using code_store::with_store;
using nearest_search::FloatTable;
using nearest_search::VI;
using nearest_search::with_bits;
using nearest_search::with_search;

/// Working memory of a block, in floats.
class BlockMemory {
 public:
  explicit BlockMemory(Blocks blocks) {
    most_ = kGroup;  // the least that is rounded
    for (const RotationBlock& block : blocks) {
      most_ = std::max<std::size_t>(most_, block.size);
    }
    scratch_ = block_scratch(scratch_floats(most_) + 3 * most_);
  }
  float* scratch() const { return scratch_; }
  float* rotated() const { return scratch_ + scratch_floats(most_); }
  float* staging() const { return rotated() + most_; }
  std::uint8_t* bytes() const { return reinterpret_cast<std::uint8_t*>(staging() + most_); }

 private:
  std::size_t most_ = 0;
  float* scratch_;
};

/// Loads a block to rotate.
struct LoadBlock {
  const float* x;
  const std::uint8_t* signs;
  HWY_INLINE VF operator()(std::size_t i) const { return flip_signs(DF(), hn::LoadU(DF(), x + i), signs, i); }
};

/// Adds up the squares of tiles.
struct SquareSum {
  TreeSum sum;
  template <std::size_t kCount>
  HWY_INLINE void operator()(const VF (&v)[kCount]) {
    VF squares[kDotParts];
#pragma GCC unroll 4
    for (std::size_t part = 0; part < kDotParts; ++part) {
      squares[part] = tree_of<kCount / kDotParts>([&](std::size_t w) HWY_ATTR {
        const VF x = v[w * kDotParts + part];
        return hn::Mul(x, x);
      });
    }
    sum.add(squares);
  }
};

HWY_INLINE float norm_of_block(const float* x, std::size_t size, float squares) {
  if (HWY_LIKELY(squares_fit(squares))) {
    return std::sqrt(squares);
  }
  NormAccumulator exact;
  for (std::size_t i = 0; i < size; i += kSumLanes) {
    for (std::size_t lane = 0; lane < kSumLanes; lane += kLanes) {
      exact.add(hn::LoadU(DF(), x + i + lane), lane);
    }
  }
  return exact.norm();
}

/// Brings bytes, at any address, into L2.
HWY_INLINE void prefetch(const void* begin, std::size_t bytes) {
  constexpr std::size_t kLineBytes = 64;
  for (std::size_t i = 0; i < bytes; i += kLineBytes) {
    __builtin_prefetch(static_cast<const std::uint8_t*>(begin) + i, 0, 2);
  }
}

/// Starts the page walks of a block's floats, which then overlap: those of a stream come one after the other.
HWY_INLINE void touch_pages(const float* floats, std::size_t size) {
  constexpr std::size_t kPageFloats = 4096 / sizeof(float);
  for (std::size_t i = 0; i < size; i += kPageFloats) {
    __builtin_prefetch(floats + i, 0, 2);
  }
}

/// Coordinates 16 w .. of a group, as hadamard() leaves them in scratch memory.
HWY_INLINE const float* vector_of_group(const float* scratch, std::size_t group, std::size_t w) {
  if constexpr (kTile % kGroup == 0) {  // a group is not spread over tiles
    return scratch + scratch_index(group) + w * kSumLanes;
  } else {
    return scratch + scratch_index(group + w * kSumLanes);
  }
}

/// Codes of a block through store(), and <z, c>, z being the block times `inverse`. rotated: as hadamard() leaves it in
/// scratch memory. next: floats to bring into L2.
template <class Search, class Store>
HWY_INLINE float round_vectors(const float* rotated, std::size_t size, float inverse, const Search& search,
                               const float* next, const Store& store) {
  const DF d;
  TreeSum dot;
  const VF factor = hn::Set(d, inverse);
  for (std::size_t group = 0; group < size; group += kGroup) {
    prefetch(next + group, kGroup * sizeof(float));
    VF products[kDotParts];
#pragma GCC unroll 4
    for (std::size_t part = 0; part < kDotParts; ++part) {
      VF z[4];
      CodeWords codes;
#pragma GCC unroll 4
      for (std::size_t w = 0; w < 4; ++w) {
        z[w] = hn::Mul(hn::LoadU(d, vector_of_group(rotated, group, w) + part * kLanes), factor);
      }
      search.find(z, codes.word);
      products[part] = tree_of<4>([&](std::size_t w) HWY_ATTR { return hn::Mul(z[w], search.point(codes.word[w])); });
      store(group + part * kLanes, codes);
    }
    dot.add(products);
  }
  return dot.total();
}

/// rotated: of a whole group, if the block is smaller.
template <unsigned kBits>
HWY_NOINLINE float round_block(float* rotated, std::size_t block_size, float inverse, const NearestPoints& points,
                               const float* next, std::uint8_t* block_packed) {
  std::uint8_t packed_group[kGroup];
  std::uint8_t* packed = block_packed;
  std::size_t size = block_size;
  if (block_size < kGroup) {  // rounds zeros, too, which add nothing to the dot product
    for (std::size_t i = block_size; i < kGroup; i += kLanes) {
      StoreToScratch{rotated}(i, hn::Zero(DF()));
    }
    packed = packed_group;
    size = kGroup;
  }
  float dot = 0;
  with_search<kBits>(points, [&](const auto& search) HWY_ATTR {
    with_store(size, kBits, packed,
               [&](const auto& store) HWY_ATTR { dot = round_vectors(rotated, size, inverse, search, next, store); });
  });
  if (block_size < kGroup) {
    std::memcpy(block_packed, packed_group, code_bytes(block_size, kBits));
  }
  return dot;
}

/// Rotates and rounds blocks.
class BlockEncoder {
 public:
  BlockEncoder(const BlockMemory& memory, const NearestPoints& points) : memory_(memory), points_(points) {}

  /// x: size floats, padded; next: floats that come next, any address. Returns the
  /// scale.
  HWY_INLINE float encode(const float* x, std::size_t size, const std::uint8_t* signs, const float* next,
                          std::uint8_t* packed) const {
    prefetch(packed, code_bytes(size, points_.bits()));  // written after the rotation
    touch_pages(next, size);
    SquareSum squares;
    hadamard(size, LoadBlock{x, signs}, memory_.scratch(), StoreToScratch{memory_.scratch()}, squares);
    const float norm = norm_of_block(x, size, squares.sum.total());
    const BlockKind kind = kind_of(norm);
    if (kind != BlockKind::kFinite) {
      return fill(kind, size, packed);
    }
    float dot = 0;
    with_bits(points_.bits(), [&](auto bits) HWY_ATTR {
      dot = round_block<bits()>(memory_.scratch(), size, 1.0F / norm, points_, next, packed);
    });
    return scale_of(norm, dot, size);
  }

  /// Codes and scale of a block that is not rounded.
  float fill(BlockKind kind, std::size_t size, std::uint8_t* packed) const {
    std::memset(packed, 0, code_bytes(size, points_.bits()));
    return kind == BlockKind::kZero ? 0.0F : kNoScale;
  }

 private:
  const BlockMemory& memory_;
  const NearestPoints& points_;
};

constexpr std::uint32_t sign_domain(Hop hop) { return hop == Hop::kUp ? kSignDomain : kDownSignDomain; }

HWY_ATTR void encode_nearest(ConstFloats gradient, Blocks blocks, const RandomKey& key, Hop hop,
                             const NearestPoints& points, std::uint8_t* codes, float* scales) {
  const BlockMemory memory(blocks);
  const BlockEncoder encoder(memory, points);
  SignWindow signs(key, sign_domain(hop));
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const RotationBlock& block = blocks[b];
    const ConstFloats from = gradient + (block.coordinate - blocks[0].coordinate);
    HWY_ASSUME(from.data != nullptr);
    const float* x = memory.staging();
    const float* next = x;
    if (block.used == block.size && from.format == FloatFormat::kFp32) {
      x = static_cast<const float*>(from.data);
      next = x + block.size;
    } else {
      thc::to_fp32(from, block.used, memory.staging());
      std::fill(memory.staging() + block.used, memory.staging() + block.size, 0.0F);
    }
    std::uint8_t* packed = codes + code_bytes(block.offset - blocks[0].offset, points.bits());
    const float scale = encoder.encode(x, block.size, signs.bits(block.offset, block.size), next, packed);
    std::memcpy(scales + b, &scale, sizeof(scale));
  }
}

/// What the ranks' codes of one block stand for.
class BlockDecoder {
 public:
  BlockDecoder(std::span<const NearestCodes> ranks, unsigned bits, const BlockMemory& memory)
      : ranks_(ranks), bits_(bits), memory_(memory) {}

  /// offset: of the block's codes in all; kZero and kNotFinite: see decode_nearest.
  BlockKind kind(std::size_t b) const {
    BlockKind kind = BlockKind::kZero;
    for (const NearestCodes& rank : ranks_) {
      const float scale = scale_at(rank, b);
      if (std::isnan(scale)) return BlockKind::kNotFinite;
      if (scale != 0) kind = BlockKind::kFinite;
    }
    return kind;
  }

  /// Hands the rotated average of a block, times 1/d, to hadamard(), and its result to `store`.
  template <class Store>
  HWY_INLINE void rotate_back(std::size_t b, std::size_t offset, std::size_t size, const Store& store) const {
    with_bits(bits_, [&](auto bits) HWY_ATTR { rotate_back_bits<bits()>(b, offset, size, store); });
  }

 private:
  /// Looks up as it loads.
  template <std::size_t kEntries>
  struct LoadCodes {
    const std::uint8_t* bytes;
    FloatTable<kEntries> table;
    const float* out;  // what comes next into the cache
    HWY_INLINE VF operator()(std::size_t i) const {
      __builtin_prefetch(out + i, 1, 2);
      return table[codes(i)];
    }
    HWY_INLINE VI codes(std::size_t i) const {
      const hn::Rebind<std::uint8_t, DF> d8;
      return hn::PromoteTo(hn::RebindToSigned<DF>(), hn::LoadU(d8, bytes + i));
    }
  };
  /// And adds what other ranks have.
  template <std::size_t kEntries>
  struct AddCodes {
    const float* others;
    LoadCodes<kEntries> last;
    HWY_INLINE VF operator()(std::size_t i) const { return hn::Add(hn::LoadU(DF(), others + i), last(i)); }
  };

  static float scale_at(const NearestCodes& rank, std::size_t b) {
    float scale = 0;
    std::memcpy(&scale, rank.scales + b, sizeof(scale));
    return scale;
  }

  /// A rank's codes a byte each, and its points times its factor in `table`.
  template <std::size_t kEntries>
  HWY_INLINE LoadCodes<kEntries> load(const NearestCodes& rank, std::size_t b, std::size_t offset, std::size_t size,
                                      float* table, const float* out) const {
    thc::unpack(rank.codes + code_bytes(offset, bits_), size, bits_, memory_.bytes());
    prefetch(rank.codes + code_bytes(offset + size, bits_), code_bytes(size, bits_));  // of the next block
    const float factor = factor_of(scale_at(rank, b), ranks_.size(), size);
    std::memcpy(table, rank.points, kEntries * sizeof(float));
    for (std::size_t i = 0; i < kEntries; ++i) {
      table[i] *= factor;
    }
    return {memory_.bytes(), FloatTable<kEntries>(table), out};
  }

  template <unsigned kBits, class Store>
  HWY_NOINLINE void rotate_back_bits(std::size_t b, std::size_t offset, std::size_t size, const Store& store) const {
    constexpr std::size_t kEntries = std::size_t{1} << kBits;
    alignas(64) float table[std::max(kEntries, NearestPoints::kLeastEntries)] = {};
    const NearestCodes& last = ranks_.back();
    if (ranks_.size() == 1) {
      const auto only = load<kEntries>(last, b, offset, size, table, store.x);
      hadamard(size, only, memory_.scratch(), store);
      return;
    }
    float* sum = memory_.rotated();
    const auto first = load<kEntries>(ranks_.front(), b, offset, size, table, sum);
    for (std::size_t i = 0; i < size; i += kLanes) {
      hn::StoreU(first(i), DF(), sum + i);
    }
    for (const NearestCodes& rank : ranks_.subspan(1, ranks_.size() - 2)) {
      const AddCodes<kEntries> add{sum, load<kEntries>(rank, b, offset, size, table, sum)};
      for (std::size_t i = 0; i < size; i += kLanes) {
        hn::StoreU(add(i), DF(), sum + i);
      }
    }
    const AddCodes<kEntries> add{sum, load<kEntries>(last, b, offset, size, table, store.x)};
    hadamard(size, add, memory_.scratch(), store);
  }

  std::span<const NearestCodes> ranks_;
  unsigned bits_;
  const BlockMemory& memory_;
};

HWY_ATTR void decode_nearest(std::span<const NearestCodes> ranks, unsigned bits, Blocks blocks, const RandomKey& key,
                             Hop hop, Floats out) {
  const BlockMemory memory(blocks);
  const BlockDecoder decoder(ranks, bits, memory);
  SignWindow signs(key, sign_domain(hop));
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const RotationBlock& block = blocks[b];
    const Floats to = out + (block.coordinate - blocks[0].coordinate);
    HWY_ASSUME(to.data != nullptr);
    const BlockKind kind = decoder.kind(b);
    const bool direct = kind == BlockKind::kFinite && block.used == block.size && to.format == FloatFormat::kFp32;
    float* average = direct ? static_cast<float*>(to.data) : memory.staging();
    if (direct) {
      touch_pages(average + block.size, block.size);  // of the next block
    }
    if (kind == BlockKind::kFinite) {
      const StoreWithSigns store{average, signs.bits(block.offset, block.size)};
      decoder.rotate_back(b, block.offset - blocks[0].offset, block.size, store);
    } else {
      std::fill_n(average, block.used, kind == BlockKind::kZero ? 0.0F : kNoScale);
    }
    if (!direct) {
      thc::from_fp32(average, block.used, to);
    }
  }
}

HWY_ATTR void recode_nearest(std::span<const NearestCodes> ranks, unsigned bits, Blocks blocks, const RandomKey& key,
                             const NearestPoints& down, std::uint8_t* codes, float* scales) {
  const BlockMemory memory(blocks);
  const BlockDecoder decoder(ranks, bits, memory);
  const BlockEncoder encoder(memory, down);
  SignWindow up_signs(key, sign_domain(Hop::kUp));
  SignWindow down_signs(key, sign_domain(Hop::kDown));
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const RotationBlock& block = blocks[b];
    const std::size_t offset = block.offset - blocks[0].offset;
    std::uint8_t* packed = codes + code_bytes(offset, down.bits());
    const BlockKind kind = decoder.kind(b);
    float scale = 0;
    if (kind == BlockKind::kFinite) {
      float* average = memory.staging();
      decoder.rotate_back(b, offset, block.size, StoreWithSigns{average, up_signs.bits(block.offset, block.size)});
      std::fill(average + block.used, average + block.size, 0.0F);
      const std::uint8_t* bits_down = down_signs.bits(block.offset, block.size);
      scale = encoder.encode(average, block.size, bits_down, average, packed);
    } else {
      scale = encoder.fill(kind, block.size, packed);
    }
    std::memcpy(scales + b, &scale, sizeof(scale));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace thc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thc {

HWY_EXPORT(encode_nearest);
HWY_EXPORT(decode_nearest);
HWY_EXPORT(recode_nearest);

void encode_nearest(ConstFloats gradient, Blocks blocks, const RandomKey& key, Hop hop, const NearestPoints& points,
                    std::uint8_t* codes, float* scales) {
  HWY_DYNAMIC_DISPATCH(encode_nearest)(gradient, blocks, key, hop, points, codes, scales);
}

void decode_nearest(std::span<const NearestCodes> ranks, unsigned bits, Blocks blocks, const RandomKey& key, Hop hop,
                    Floats out) {
  HWY_DYNAMIC_DISPATCH(decode_nearest)(ranks, bits, blocks, key, hop, out);
}

void recode_nearest(std::span<const NearestCodes> ranks, unsigned bits, Blocks blocks, const RandomKey& key,
                    const NearestPoints& down, std::uint8_t* codes, float* scales) {
  HWY_DYNAMIC_DISPATCH(recode_nearest)(ranks, bits, blocks, key, down, codes, scales);
}

}  // namespace thc
#endif
