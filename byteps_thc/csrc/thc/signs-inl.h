// The diagonal matrix D as bits, generated a window at a time. No include guard: compiled once per target.
#if defined(THC_SIGNS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef THC_SIGNS_INL_H
#undef THC_SIGNS_INL_H
#else
#define THC_SIGNS_INL_H
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "hwy/highway.h"
#include "thc/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thc {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Sign bits of a moving window of coordinates.
class SignWindow {
 public:
  explicit SignWindow(const RandomKey& key, std::uint32_t domain = kSignDomain)
      : stream_(key, domain), first_(key.first) {}

  /// Bit k of the result: sign of coordinate offset + k, k < size. Valid until the next call. offset and size are
  /// multiples of 16.
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
