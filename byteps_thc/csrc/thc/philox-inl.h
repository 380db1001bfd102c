// Philox4x32 on vectors of 64-bit lanes, one Philox block per lane. No include guard: compiled once per target.
#if defined(THC_PHILOX_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef THC_PHILOX_INL_H
#undef THC_PHILOX_INL_H
#else
#define THC_PHILOX_INL_H
#endif

#include "hwy/highway.h"
#include "thc/philox.h"

HWY_BEFORE_NAMESPACE();
namespace thc {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Words of consecutive Philox blocks: lane l of `word[w]` holds word w of block `first + l` in its lower 32 bits.
/// Upper halves are not zero: the multiplication ignores them, so clearing them each round would be wasted.
template <class V64>
struct PhiloxLanes {
  V64 word[4];
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
    return blocks_at(d, indices(d, first_index));
  }

  /// The Philox blocks of these indices, modulo 2^32.
  template <class D64>
  HWY_INLINE PhiloxLanes<hn::Vec<D64>> blocks_at(D64 d, hn::Vec<D64> c0) const {
    using V = hn::Vec<D64>;
    const hn::Repartition<std::uint32_t, D64> d32;
    const V multiplier0 = hn::Set(d, kPhiloxMultiplier0);
    const V multiplier1 = hn::Set(d, kPhiloxMultiplier1);
    V c1 = hn::Set(d, domain_);
    V c2 = hn::Set(d, tensor_);
    V c3 = hn::Set(d, round_);
#pragma GCC unroll 10
    for (int i = 0; i < kRounds; ++i) {
      const V product0 = hn::MulEven(hn::BitCast(d32, multiplier0), hn::BitCast(d32, c0));
      const V product1 = hn::MulEven(hn::BitCast(d32, multiplier1), hn::BitCast(d32, c2));
      c0 = hn::Xor3(hn::ShiftRight<32>(product1), c1, hn::Set(d, keys_[2 * i]));
      c1 = product1;
      c2 = hn::Xor3(hn::ShiftRight<32>(product0), c3, hn::Set(d, keys_[2 * i + 1]));
      c3 = product0;
    }
    return {{c0, c1, c2, c3}};
  }

 private:
  static constexpr std::size_t kMaxLanes = 8;
  alignas(64) std::uint64_t lane_[kMaxLanes];
  std::uint64_t keys_[2 * kRounds];  // in memory, so that instructions broadcast them as they load
  std::uint64_t domain_;
  std::uint64_t tensor_;
  std::uint64_t round_;
};

}  // namespace HWY_NAMESPACE
}  // namespace thc
HWY_AFTER_NAMESPACE();

#endif
