// Philox4x32, one block per 64-bit lane, and the signs of the matrix D. No include guard: compiled once per target.
#if defined(THC_PHILOX_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef THC_PHILOX_INL_H
#undef THC_PHILOX_INL_H
#else
#define THC_PHILOX_INL_H
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "hwy/highway.h"
#include "thc/philox.h"

HWY_BEFORE_NAMESPACE();
namespace thc {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Words of consecutive Philox blocks: lane l of `word[w]` has word w of block `first + l` in its lower half, and
/// anything in its upper half, which multiplication ignores.
template <class V64>
struct PhiloxLanes {
  V64 word[4];
};

/// The same words, two to a lane: words 0 (upper half) and 1 of block `first + l` in `pair[0]`, 2 and 3 in `pair[1]`.
template <class V64>
struct PhiloxPairs {
  V64 pair[2];
};

/// The counters and keys of a stream, prepared once: only the block index changes from call to call.
template <int kRounds>
class PhiloxStream {
 public:
  PhiloxStream(const RandomKey& key, std::uint32_t domain) : domain_(domain), tensor_(key.tensor), round_(key.round) {
    auto key0 = static_cast<std::uint32_t>(key.seed);
    auto key1 = static_cast<std::uint32_t>(key.seed >> 32);
    for (int i = 0; i < kRounds; ++i, key0 += kPhiloxWeyl0, key1 += kPhiloxWeyl1) {
      keys_[2 * i] = key0;
      keys_[2 * i + 1] = key1;
    }
    for (int i = 0; i < 2; ++i) {
      upper_keys_[i] = keys_[2 * (kRounds - 1) + i] << 32;
    }
    for (std::uint64_t lane = 0; lane < kMaxLanes; ++lane) {
      lane_[lane] = lane;
    }
  }

  /// Indices first_index .. first_index + Lanes(d) - 1.
  template <class D64>
  HWY_INLINE hn::Vec<D64> indices(D64 d, std::uint32_t first_index) const {
    return hn::Add(hn::Load(d, lane_), hn::Set(d, first_index));
  }

  /// Philox blocks first_index .. first_index + Lanes(d) - 1.
  template <class D64>
  HWY_INLINE PhiloxLanes<hn::Vec<D64>> blocks(D64 d, std::uint32_t first_index) const {
    return rounds<kRounds>(d, indices(d, first_index));
  }

  /// The Philox blocks at `index`, modulo 2^32. Joining words costs no instruction beyond the last round.
  template <class D64>
  HWY_INLINE PhiloxPairs<hn::Vec<D64>> pairs(D64 d, hn::Vec<D64> index) const {
    const auto last = rounds<kRounds - 1>(d, index);
    const auto [product0, product1] = products(d, last);
    return {{hn::Xor3(product1, hn::ShiftLeft<32>(last.word[1]), hn::Set(d, upper_keys_[0])),
             hn::Xor3(product0, hn::ShiftLeft<32>(last.word[3]), hn::Set(d, upper_keys_[1]))}};
  }

 private:
  template <class V64>
  struct Products {
    V64 product0;
    V64 product1;
  };

  template <class D64>
  HWY_INLINE Products<hn::Vec<D64>> products(D64 d, const PhiloxLanes<hn::Vec<D64>>& c) const {
    const hn::Repartition<std::uint32_t, D64> d32;
    const auto multiplier0 = hn::BitCast(d32, hn::Set(d, kPhiloxMultiplier0));
    const auto multiplier1 = hn::BitCast(d32, hn::Set(d, kPhiloxMultiplier1));
    return {hn::MulEven(multiplier0, hn::BitCast(d32, c.word[0])),
            hn::MulEven(multiplier1, hn::BitCast(d32, c.word[2]))};
  }

  template <int kCount, class D64>
  HWY_INLINE PhiloxLanes<hn::Vec<D64>> rounds(D64 d, hn::Vec<D64> index) const {
    PhiloxLanes<hn::Vec<D64>> c{{index, hn::Set(d, domain_), hn::Set(d, tensor_), hn::Set(d, round_)}};
#pragma GCC unroll 10
    for (int i = 0; i < kCount; ++i) {
      const auto [product0, product1] = products(d, c);
      c = {{hn::Xor3(hn::ShiftRight<32>(product1), c.word[1], hn::Set(d, keys_[2 * i])), product1,
            hn::Xor3(hn::ShiftRight<32>(product0), c.word[3], hn::Set(d, keys_[2 * i + 1])), product0}};
    }
    return c;
  }

  static constexpr std::size_t kMaxLanes = 8;
  alignas(64) std::uint64_t lane_[kMaxLanes];
  std::uint64_t keys_[2 * kRounds];  // in memory, so that instructions broadcast them as they load
  std::uint64_t upper_keys_[2];      // of the last round
  std::uint64_t domain_;
  std::uint64_t tensor_;
  std::uint64_t round_;
};

/// Sign bits of a moving window of coordinates.
class SignWindow {
 public:
  explicit SignWindow(const RandomKey& key) : stream_(key, kSignDomain), first_(key.first) {}

  /// Bit k of the result: sign of coordinate offset + k, k < size, multiples of 16. Valid until the next call.
  HWY_INLINE const std::uint8_t* bits(std::size_t offset, std::size_t size) {
    offset += first_;
    if (offset < begin_ || offset + size > end_) {
      generate(offset, size);
    }
    return bits_.data() + (offset - begin_) / 8;
  }

 private:
  // Small blocks share a window: the generator makes at least a vector of Philox blocks at a time.
  static constexpr std::size_t kMinWindow = 8192;
  static constexpr std::size_t kBlockBytes = kSignsPerPhiloxBlock / 8;

  void generate(std::size_t offset, std::size_t size) {
    begin_ = offset / kSignsPerPhiloxBlock * kSignsPerPhiloxBlock;
    const std::size_t last = offset + std::max(size, kMinWindow) - 1;
    const std::size_t blocks = last / kSignsPerPhiloxBlock + 1 - begin_ / kSignsPerPhiloxBlock;
    end_ = begin_ + blocks * kSignsPerPhiloxBlock;
    const hn::ScalableTag<std::uint64_t> d;
    bits_.resize(std::max(bits_.size(), (blocks + hn::Lanes(d)) * kBlockBytes));
    const auto lower_half = hn::Set(d, 0xffffffffU);
    const auto first_index = static_cast<std::uint32_t>(begin_ / kSignsPerPhiloxBlock);
    for (std::size_t i = 0; i < blocks; i += hn::Lanes(d)) {  // the last vector may go beyond the window
      const auto words = stream_.blocks(d, first_index + static_cast<std::uint32_t>(i));
      const auto low = hn::Or(hn::And(words.word[0], lower_half), hn::ShiftLeft<32>(words.word[1]));
      const auto high = hn::Or(hn::And(words.word[2], lower_half), hn::ShiftLeft<32>(words.word[3]));
      hn::StoreInterleaved2(low, high, d, reinterpret_cast<std::uint64_t*>(bits_.data() + kBlockBytes * i));
    }
  }

  PhiloxStream<kSignRounds> stream_;
  std::size_t first_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::vector<std::uint8_t> bits_;
};

/// -v where the bit of the coordinate is set; `bits` of coordinates from i.
template <class D>
HWY_INLINE hn::Vec<D> flip_signs(D d, hn::Vec<D> v, const std::uint8_t* bits, std::size_t i) {
  constexpr std::size_t kVectorLanes = hn::MaxLanes(D());
  const auto sign_bit = hn::SignBit(d);
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  // One masked instruction; Highway 1.0 has none and would make two.
  const auto mask = hn::LoadMaskBits(d, bits + i / 8);
  return hn::Vec<D>{_mm512_mask_xor_ps(v.raw, mask.raw, v.raw, sign_bit.raw)};
#elif HWY_TARGET == HWY_AVX2
  // Every lane moves its bit up to the sign: half as many instructions as a mask. The three bytes behind are readable.
  const hn::RebindToSigned<D> di;
  std::int32_t word = 0;
  std::memcpy(&word, bits + i / 8, sizeof(word));
  const __m256i moved = _mm256_sllv_epi32(_mm256_set1_epi32(word), _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24));
  return hn::Xor(v, hn::And(hn::BitCast(d, hn::Vec<decltype(di)>{moved}), sign_bit));
#else
  if constexpr (kVectorLanes >= 8) {
    return hn::Xor(v, hn::IfThenElseZero(hn::LoadMaskBits(d, bits + i / 8), sign_bit));
  } else {
    const std::uint8_t nibble[8] = {static_cast<std::uint8_t>(bits[i / 8] >> (i % 8))};
    return hn::Xor(v, hn::IfThenElseZero(hn::LoadMaskBits(d, nibble), sign_bit));
  }
#endif
}

/// Stores vectors of a block with their signs flipped.
struct StoreWithSigns {
  float* x;
  const std::uint8_t* signs;
  template <class V>
  HWY_INLINE void operator()(std::size_t i, V v) const {
    const hn::DFromV<V> d;
    hn::StoreU(flip_signs(d, v, signs, i), d, x + i);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace thc
HWY_AFTER_NAMESPACE();

#endif
