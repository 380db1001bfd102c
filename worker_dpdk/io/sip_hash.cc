#include "io/sip_hash.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "io/sip_hash.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace thc::io {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

static_assert(std::endian::native == std::endian::little, "SipHash reads little-endian words");

using D = hn::ScalableTag<std::uint64_t>;
using V = hn::Vec<D>;
inline constexpr std::size_t kLanes = hn::MaxLanes(D());
// What is transposed at a time: as many words of each message as there are messages.
inline constexpr std::size_t kWordBytes = sizeof(std::uint64_t);
inline constexpr std::size_t kBlockBytes = kLanes * kWordBytes;
// Vectors of messages at a time: a round is a chain of dependent steps, which leaves room for a second one.
inline constexpr std::size_t kVectors = 2;

template <int kBits>
HWY_INLINE V rotate_left(V v) {
  if constexpr (kBits == 32) {
    const hn::Repartition<std::uint32_t, D> d32;
    return hn::BitCast(D(), hn::Shuffle2301(hn::BitCast(d32, v)));
  } else {
    return hn::RotateRight<64 - kBits>(v);
  }
}

/// Of kLanes messages.
struct State {
  V v0, v1, v2, v3;

  HWY_INLINE void sip_round() {
    v0 = hn::Add(v0, v1);
    v2 = hn::Add(v2, v3);
    v1 = hn::Xor(rotate_left<13>(v1), v0);
    v3 = hn::Xor(rotate_left<16>(v3), v2);
    v0 = hn::Add(rotate_left<32>(v0), v3);
    v2 = hn::Add(v2, v1);
    v3 = hn::Xor(rotate_left<21>(v3), v0);
    v1 = hn::Xor(rotate_left<17>(v1), v2);
    v2 = rotate_left<32>(v2);
  }
  HWY_INLINE void compress(V word) {
    v3 = hn::Xor(v3, word);
    sip_round();
    sip_round();
    v0 = hn::Xor(v0, word);
  }
  HWY_INLINE V finish(std::uint64_t mark, V& marked) {
    marked = hn::Xor(marked, hn::Set(D(), mark));
    for (int i = 0; i < 4; ++i) sip_round();
    return hn::Xor(hn::Xor(v0, v1), hn::Xor(v2, v3));
  }
};

/// What kVectors * kLanes messages look like to the loops below; places without a message repeat another one.
template <std::size_t kGroup>
struct Group {
  const std::uint8_t* data[kGroup];
  std::size_t size_bytes[kGroup];
  const SipKey* key[kGroup];
};

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
/// words[w]: word w of eight messages; load_half(i, h) gives words h to h + 3 of message i. Halves of two are joined as
/// they are loaded, which leaves two stages to the one port of shuffles.
template <class LoadHalf>
HWY_INLINE void transpose_halves(const LoadHalf& load_half, V (&words)[kLanes]) {
  const D d;
  for (std::size_t h = 0; h < 8; h += 4) {
    const V rows_02 = hn::Combine(d, load_half(2, h), load_half(0, h));
    const V rows_13 = hn::Combine(d, load_half(3, h), load_half(1, h));
    const V rows_46 = hn::Combine(d, load_half(6, h), load_half(4, h));
    const V rows_57 = hn::Combine(d, load_half(7, h), load_half(5, h));
    const V even_0123 = hn::InterleaveLower(d, rows_02, rows_13);
    const V odd_0123 = hn::InterleaveUpper(d, rows_02, rows_13);
    const V even_4567 = hn::InterleaveLower(d, rows_46, rows_57);
    const V odd_4567 = hn::InterleaveUpper(d, rows_46, rows_57);
    // Even 128-bit blocks of both, then odd ones.
    words[h] = V{_mm512_shuffle_i64x2(even_0123.raw, even_4567.raw, 0x88)};
    words[h + 1] = V{_mm512_shuffle_i64x2(odd_0123.raw, odd_4567.raw, 0x88)};
    words[h + 2] = V{_mm512_shuffle_i64x2(even_0123.raw, even_4567.raw, 0xdd)};
    words[h + 3] = V{_mm512_shuffle_i64x2(odd_0123.raw, odd_4567.raw, 0xdd)};
  }
}
#endif

/// words[w]: word w of kLanes messages, from the block that is `offset` bytes behind each of `data`.
HWY_INLINE void load_transposed(const std::uint8_t* const* data, std::size_t offset, V (&words)[kLanes]) {
  const auto words_at = [&](std::size_t i)
                            HWY_ATTR { return reinterpret_cast<const std::uint64_t*>(data[i] + offset); };
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  const hn::Half<D> half;
  transpose_halves([&](std::size_t i, std::size_t h) HWY_ATTR { return hn::LoadU(half, words_at(i) + h); }, words);
#else
  const D d;
  if constexpr (kLanes == 4) {
    const V row_0 = hn::LoadU(d, words_at(0));
    const V row_1 = hn::LoadU(d, words_at(1));
    const V row_2 = hn::LoadU(d, words_at(2));
    const V row_3 = hn::LoadU(d, words_at(3));
    const V even_01 = hn::InterleaveLower(d, row_0, row_1);
    const V odd_01 = hn::InterleaveUpper(d, row_0, row_1);
    const V even_23 = hn::InterleaveLower(d, row_2, row_3);
    const V odd_23 = hn::InterleaveUpper(d, row_2, row_3);
    words[0] = hn::ConcatLowerLower(d, even_23, even_01);
    words[1] = hn::ConcatLowerLower(d, odd_23, odd_01);
    words[2] = hn::ConcatUpperUpper(d, even_23, even_01);
    words[3] = hn::ConcatUpperUpper(d, odd_23, odd_01);
  } else if constexpr (kLanes == 2) {
    const V row_0 = hn::LoadU(d, words_at(0));
    const V row_1 = hn::LoadU(d, words_at(1));
    words[0] = hn::InterleaveLower(d, row_0, row_1);
    words[1] = hn::InterleaveUpper(d, row_0, row_1);
  } else {
    words[0] = hn::LoadU(d, words_at(0));
  }
#endif
}

/// Words of messages from number `first` on, as far as they go, and SipHash's last one with the length; zero behind it.
template <std::size_t kGroup>
HWY_INLINE void copy_block(const Group<kGroup>& group, std::size_t i, std::size_t first, std::uint64_t* block) {
  const std::uint8_t* from = group.data[i] + first * kWordBytes;
  const std::size_t whole = group.size_bytes[i] / kWordBytes;
  std::memset(block, 0, kBlockBytes);
  std::size_t w = 0;
  for (; w < kLanes && first + w < whole; ++w) {
    std::memcpy(block + w, from + w * kWordBytes, kWordBytes);
  }
  if (w < kLanes && first + w == whole) {
    const std::size_t rest = group.size_bytes[i] % kWordBytes;
    if (rest > 0) std::memcpy(block + w, from + w * kWordBytes, rest);
    block[w] |= static_cast<std::uint64_t>(group.size_bytes[i]) << 56;
  }
}

/// What is behind the blocks that all messages have.
template <std::size_t kGroup>
HWY_INLINE void compress_ends(const Group<kGroup>& group, std::size_t first, State* states) {
  const D d;
  const auto [shortest, longest] = std::minmax_element(group.size_bytes, group.size_bytes + kGroup);
  const bool alike = *shortest / kWordBytes == *longest / kWordBytes;
  const std::size_t end = *longest / kWordBytes + 1;
  for (; first < end; first += kLanes) {
    for (std::size_t k = 0; k < kGroup / kLanes; ++k) {
      HWY_ALIGN std::uint64_t blocks[kLanes][kLanes];
      HWY_ALIGN std::uint64_t count[kLanes];  // words of the message
      const std::uint8_t* data[kLanes];
      for (std::size_t i = 0; i < kLanes; ++i) {
        copy_block(group, k * kLanes + i, first, blocks[i]);
        count[i] = group.size_bytes[k * kLanes + i] / kWordBytes + 1;
        data[i] = reinterpret_cast<const std::uint8_t*>(blocks[i]);
      }
      V words[kLanes];
      load_transposed(data, 0, words);
      HWY_ALIGN std::uint64_t stored[kLanes][kLanes];
      for (std::size_t w = 0; w < kLanes; ++w) hn::Store(words[w], d, stored[w]);
      State& state = states[k];
      for (std::size_t w = 0; w < kLanes && first + w < end; ++w) {
        const State before = state;
        state.compress(hn::Load(d, stored[w]));
        if (alike) continue;
        const auto goes_on = hn::Gt(hn::Load(d, count), hn::Set(d, first + w));
        state.v0 = hn::IfThenElse(goes_on, state.v0, before.v0);
        state.v1 = hn::IfThenElse(goes_on, state.v1, before.v1);
        state.v2 = hn::IfThenElse(goes_on, state.v2, before.v2);
        state.v3 = hn::IfThenElse(goes_on, state.v3, before.v3);
      }
    }
  }
}

/// The same for messages of one length without a part of a word. False: not here.
template <std::size_t kGroup>
HWY_INLINE bool compress_equal_ends([[maybe_unused]] const Group<kGroup>& group, [[maybe_unused]] std::size_t first,
                                    [[maybe_unused]] State* states) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3 && !HWY_MEM_OPS_MIGHT_FAULT
  const std::size_t size_bytes = group.size_bytes[0];
  const bool equal =
      std::all_of(group.size_bytes, group.size_bytes + kGroup, [&](std::size_t other) { return other == size_bytes; });
  if (!equal || size_bytes % kWordBytes != 0) return false;
  const D d;
  const hn::Half<D> half;
  const std::size_t rest = size_bytes / kWordBytes - first;
  for (std::size_t k = 0; k < kGroup / kLanes; ++k) {
    if (rest > 0) {
      // Nothing behind a message's end is read: lanes that a mask leaves out are not touched.
      const auto lower = hn::FirstN(half, std::min(rest, kLanes / 2));
      const auto upper = hn::FirstN(half, rest - std::min(rest, kLanes / 2));
      V words[kLanes];
      transpose_halves(
          [&](std::size_t i, std::size_t h) HWY_ATTR {
            const auto* row = reinterpret_cast<const std::uint64_t*>(group.data[k * kLanes + i]) + first + h;
            return hn::MaskedLoad(h == 0 ? lower : upper, half, row);
          },
          words);
      for (std::size_t w = 0; w < kLanes - 1; ++w) {  // unrolled: words stay in registers
        if (w < rest) states[k].compress(words[w]);
      }
    }
    states[k].compress(hn::Set(d, static_cast<std::uint64_t>(size_bytes) << 56));
  }
  return true;
#else
  return false;
#endif
}

template <std::size_t kGroup>
HWY_INLINE void start(const Group<kGroup>& group, bool is_long, State* states) {
  const D d;
  for (std::size_t k = 0; k < kGroup / kLanes; ++k) {
    HWY_ALIGN std::uint64_t words[2][kLanes];
    for (std::size_t i = 0; i < kLanes; ++i) {
      std::memcpy(&words[0][i], group.key[k * kLanes + i]->data(), kWordBytes);
      std::memcpy(&words[1][i], group.key[k * kLanes + i]->data() + kWordBytes, kWordBytes);
    }
    const V k0 = hn::Load(d, words[0]);
    const V k1 = hn::Load(d, words[1]);
    states[k].v0 = hn::Xor(k0, hn::Set(d, 0x736f6d6570736575));
    states[k].v1 = hn::Xor(k1, hn::Set(d, is_long ? 0x646f72616e646f6d ^ 0xee : 0x646f72616e646f6d));
    states[k].v2 = hn::Xor(k0, hn::Set(d, 0x6c7967656e657261));
    states[k].v3 = hn::Xor(k1, hn::Set(d, 0x7465646279746573));
  }
}

/// hashes[word][message]
template <bool kLong, std::size_t kGroup>
HWY_INLINE void hash_group(const Group<kGroup>& group, std::uint64_t (&hashes)[kLong ? 2 : 1][kGroup]) {
  constexpr std::size_t kStates = kGroup / kLanes;
  const D d;
  State states[kStates];
  start(group, kLong, states);
  const std::size_t blocks = *std::min_element(group.size_bytes, group.size_bytes + kGroup) / kBlockBytes;
  for (std::size_t b = 0; b < blocks; ++b) {
    V words[kStates][kLanes];
    for (std::size_t k = 0; k < kStates; ++k) load_transposed(group.data + k * kLanes, b * kBlockBytes, words[k]);
    for (std::size_t w = 0; w < kLanes; ++w) {
      for (std::size_t k = 0; k < kStates; ++k) states[k].compress(words[k][w]);
    }
  }
  if (!compress_equal_ends(group, blocks * kLanes, states)) compress_ends(group, blocks * kLanes, states);
  for (std::size_t k = 0; k < kStates; ++k) {
    hn::StoreU(states[k].finish(kLong ? 0xee : 0xff, states[k].v2), d, hashes[0] + k * kLanes);
    if constexpr (kLong) hn::StoreU(states[k].finish(0xdd, states[k].v1), d, hashes[1] + k * kLanes);
  }
}

template <std::size_t kStates, class Hash>
HWY_INLINE void hash_ordered(std::span<const SipMessage> messages, std::span<const std::uint8_t> order, Hash* hashes) {
  constexpr bool kLong = sizeof(Hash) == sizeof(SipHash128);
  constexpr std::size_t kGroup = kStates * kLanes;
  Group<kGroup> group;
  for (std::size_t i = 0; i < kGroup; ++i) {
    const SipMessage& message = messages[order[std::min(i, order.size() - 1)]];
    group.data[i] = message.bytes.data();
    group.size_bytes[i] = message.bytes.size();
    group.key[i] = message.key;
  }
  HWY_ALIGN std::uint64_t words[kLong ? 2 : 1][kGroup];
  hash_group<kLong>(group, words);
  for (std::size_t i = 0; i < order.size(); ++i) {
    std::memcpy(hashes[order[i]].data(), &words[0][i], kWordBytes);
    if constexpr (kLong) std::memcpy(hashes[order[i]].data() + kWordBytes, &words[1][i], kWordBytes);
  }
}

/// `order`: numbers of two messages or more, by length.
template <class Hash>
HWY_INLINE void hash_all(std::span<const SipMessage> messages, std::span<const std::uint8_t> order, Hash* hashes) {
  while (order.size() > kLanes) {
    const std::size_t count = std::min(order.size(), kVectors * kLanes);
    hash_ordered<kVectors>(messages, order.first(count), hashes);
    order = order.subspan(count);
  }
  if (!order.empty()) hash_ordered<1>(messages, order, hashes);
}

HWY_ATTR void hash_all_64(std::span<const SipMessage> messages, std::span<const std::uint8_t> order,
                          SipHash64* hashes) {
  hash_all(messages, order, hashes);
}
HWY_ATTR void hash_all_128(std::span<const SipMessage> messages, std::span<const std::uint8_t> order,
                           SipHash128* hashes) {
  hash_all(messages, order, hashes);
}

}  // namespace HWY_NAMESPACE
}  // namespace thc::io
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thc::io {

HWY_EXPORT(hash_all_64);
HWY_EXPORT(hash_all_128);

namespace {

SipHash64 hash_one(const SipMessage& message, SipHash64) { return naive::sip_hash_64(*message.key, message.bytes); }
SipHash128 hash_one(const SipMessage& message, SipHash128) { return naive::sip_hash_128(*message.key, message.bytes); }

void hash_vectors(std::span<const SipMessage> messages, std::span<const std::uint8_t> order, SipHash64* hashes) {
  HWY_DYNAMIC_DISPATCH(hash_all_64)(messages, order, hashes);
}
void hash_vectors(std::span<const SipMessage> messages, std::span<const std::uint8_t> order, SipHash128* hashes) {
  HWY_DYNAMIC_DISPATCH(hash_all_128)(messages, order, hashes);
}

template <class Hash>
void hash_any(std::span<const SipMessage> messages, std::span<Hash> hashes) noexcept {
  constexpr std::size_t kMost = 64;  // sorted at a time
  while (!messages.empty()) {
    const auto some = messages.first(std::min(messages.size(), kMost));
    if (some.size() == 1) {
      hashes[0] = hash_one(some[0], Hash{});
    } else {
      // Neighbours of one length: a group takes as long as its longest.
      std::array<std::uint8_t, kMost> order;
      std::iota(order.begin(), order.end(), std::uint8_t{0});
      const auto used = std::span(order).first(some.size());
      const auto length = [&](std::uint8_t i) { return some[i].bytes.size(); };
      if (!std::ranges::is_sorted(used, {}, length)) std::ranges::sort(used, {}, length);
      hash_vectors(some, used, hashes.data());
    }
    messages = messages.subspan(some.size());
    hashes = hashes.subspan(some.size());
  }
}

}  // namespace

void sip_hash(std::span<const SipMessage> messages, std::span<SipHash64> hashes) noexcept {
  hash_any(messages, hashes);
}
void sip_hash(std::span<const SipMessage> messages, std::span<SipHash128> hashes) noexcept {
  hash_any(messages, hashes);
}

}  // namespace thc::io
#endif
