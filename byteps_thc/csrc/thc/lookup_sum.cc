#include "thc/lookup_sum.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "thc/bit_stream.h"
#include "thc/byte_order.h"
#include "thc/lookup_sum_naive.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thc/lookup_sum.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace thc {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D8 = hn::ScalableTag<std::uint8_t>;
using D16 = hn::ScalableTag<std::uint16_t>;
using D32 = hn::ScalableTag<std::uint32_t>;
using V8 = hn::Vec<D8>;
using V16 = hn::Vec<D16>;

/// One byte (0: lower, 1: upper) of up to 16 table values in every 128-bit block, for byte shuffles.
HWY_INLINE V8 table_bytes(const LookupTable& table, unsigned byte) {
  std::array<std::uint8_t, 16> bytes{};
  for (std::size_t i = 0; i < table.size(); ++i) {
    bytes[i] = static_cast<std::uint8_t>(table.values()[i] >> (8 * byte));
  }
  return hn::LoadDup128(D8(), bytes.data());
}

/// Lanes(D8) consecutive codes, one per byte.
template <unsigned kBits>
HWY_INLINE V8 load_codes(const std::uint8_t* packed) {
  if constexpr (kBits == 4) {
    const hn::Rebind<std::uint8_t, D16> half;
    const V16 byte = hn::PromoteTo(D16(), hn::LoadU(half, packed));
    const V16 second = hn::And(hn::ShiftLeft<8>(byte), hn::Set(D16(), 0x0f00));
    return hn::BitCast(D8(), hn::Or(hn::ShiftRight<4>(byte), second));
  } else {
    static_assert(kBits == 2);
    const hn::Rebind<std::uint8_t, D32> quarter;
    const auto byte = hn::PromoteTo(D32(), hn::LoadU(quarter, packed));
    const auto pairs = hn::Or(hn::ShiftRight<4>(byte), hn::ShiftLeft<16>(byte));
    const auto ordered = hn::Or(hn::ShiftRight<2>(pairs), hn::ShiftLeft<8>(pairs));
    return hn::BitCast(D8(), hn::And(ordered, hn::Set(D32(), 0x03030303)));
  }
}

template <bool kAdd>
HWY_INLINE void accumulate(V8 values, std::uint8_t* aggregate) {
  const D8 d;
  hn::StoreU(kAdd ? hn::Add(values, hn::LoadU(d, aggregate)) : values, d, aggregate);
}

template <bool kAdd>
HWY_INLINE void accumulate(V16 values, std::uint16_t* aggregate) {
  const D16 d;
  hn::StoreU(kAdd ? hn::Add(values, hn::LoadU(d, aggregate)) : values, d, aggregate);
}

/// Sums whole vectors of codes; returns how many codes were done.
template <unsigned kBits, bool kAdd>
HWY_INLINE std::size_t sum_vectors(const std::uint8_t* codes, std::size_t count, const LookupTable& table,
                                   std::uint8_t* aggregate) {
  const V8 low_bytes = table_bytes(table, 0);
  std::size_t i = 0;
  for (; i + hn::Lanes(D8()) <= count; i += hn::Lanes(D8())) {
    accumulate<kAdd>(hn::TableLookupBytes(low_bytes, load_codes<kBits>(codes + i * kBits / 8)), aggregate + i);
  }
  return i;
}

/// Hot case, four bits into 8-bit sums, two vectors at a time: both nibbles of a byte are looked up where they are,
/// and interleaving puts them in order, provided that its halves of every 128-bit block come from both halves of the
/// vector.
template <bool kAdd>
HWY_INLINE std::size_t sum_nibbles(const std::uint8_t* codes, std::size_t count, const LookupTable& table,
                                   std::uint8_t* aggregate) {
  const D8 d;
  const hn::Repartition<std::uint64_t, D8> d64;
  constexpr std::size_t kBlocks = hn::MaxLanes(D8()) / 16;
  std::uint64_t source_words[2 * kBlocks];
  for (std::size_t b = 0; b < kBlocks; ++b) {
    source_words[2 * b] = b;
    source_words[2 * b + 1] = kBlocks + b;
  }
  const auto source = hn::SetTableIndices(d64, source_words);
  const V8 values = table_bytes(table, 0);
  const V8 nibble = hn::Set(d, 0x0f);
  const std::size_t step = 2 * hn::Lanes(d);
  std::size_t i = 0;
  for (; i + step <= count; i += step) {
    const auto packed = hn::TableLookupLanes(hn::BitCast(d64, hn::LoadU(d, codes + i / 2)), source);
    const V8 upper = hn::And(hn::BitCast(d, hn::ShiftRight<4>(packed)), nibble);
    const V8 lower = hn::And(hn::BitCast(d, packed), nibble);
    const V8 first = hn::TableLookupBytes(values, upper);
    const V8 second = hn::TableLookupBytes(values, lower);
    accumulate<kAdd>(hn::InterleaveLower(d, first, second), aggregate + i);
    accumulate<kAdd>(hn::InterleaveUpper(d, first, second), aggregate + i + hn::Lanes(d));
  }
  return i;
}

/// sum_vectors for 16-bit sums: values are looked up a byte at a time, then widened and joined.
template <unsigned kBits, bool kAdd>
HWY_INLINE std::size_t sum_vectors(const std::uint8_t* codes, std::size_t count, const LookupTable& table,
                                   std::uint16_t* aggregate) {
  const V8 low_bytes = table_bytes(table, 0);
  const V8 high_bytes = table_bytes(table, 1);
  const hn::Half<D8> half;
  const auto widen = [](auto low, auto high) HWY_ATTR {
    return hn::Or(hn::PromoteTo(D16(), low), hn::ShiftLeft<8>(hn::PromoteTo(D16(), high)));
  };
  std::size_t i = 0;
  for (; i + hn::Lanes(D8()) <= count; i += hn::Lanes(D8())) {
    const V8 code = load_codes<kBits>(codes + i * kBits / 8);
    const V8 low = hn::TableLookupBytes(low_bytes, code);
    const V8 high = hn::TableLookupBytes(high_bytes, code);
    accumulate<kAdd>(widen(hn::LowerHalf(half, low), hn::LowerHalf(half, high)), aggregate + i);
    accumulate<kAdd>(widen(hn::UpperHalf(half, low), hn::UpperHalf(half, high)), aggregate + i + hn::Lanes(D16()));
  }
  return i;
}

template <bool kAdd, class Sum>
HWY_INLINE void sum_codes(const std::uint8_t* codes, std::size_t count, const LookupTable& table, Accumulate mode,
                          Sum* aggregate) {
  const std::size_t done = table.bits() == 4   ? sum_vectors<4, kAdd>(codes, count, table, aggregate)
                           : table.bits() == 2 ? sum_vectors<2, kAdd>(codes, count, table, aggregate)
                                               : 0;
  naive::lookup_sum(codes + done * table.bits() / 8, count - done, table, mode, aggregate + done);
}

HWY_ATTR void lookup_sum_8(const std::uint8_t* codes, std::size_t count, const LookupTable& table, Accumulate mode,
                           std::uint8_t* aggregate) {
  std::size_t done = 0;
  if (table.bits() == 4) {
    done = mode == Accumulate::kAdd ? sum_nibbles<true>(codes, count, table, aggregate)
                                    : sum_nibbles<false>(codes, count, table, aggregate);
  }
  codes += done / 2;  // zero, or codes of four bits
  aggregate += done;
  mode == Accumulate::kAdd ? sum_codes<true>(codes, count - done, table, mode, aggregate)
                           : sum_codes<false>(codes, count - done, table, mode, aggregate);
}

HWY_ATTR void lookup_sum_16(const std::uint8_t* codes, std::size_t count, const LookupTable& table, Accumulate mode,
                            std::uint16_t* aggregate) {
  mode == Accumulate::kAdd ? sum_codes<true>(codes, count, table, mode, aggregate)
                           : sum_codes<false>(codes, count, table, mode, aggregate);
}

}  // namespace HWY_NAMESPACE
}  // namespace thc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thc {

HWY_EXPORT(lookup_sum_8);
HWY_EXPORT(lookup_sum_16);

void lookup_sum(const std::uint8_t* codes, std::size_t count, const LookupTable& table, Accumulate mode,
                std::uint8_t* aggregate) noexcept {
  HWY_DYNAMIC_DISPATCH(lookup_sum_8)(codes, count, table, mode, aggregate);
}

void lookup_sum(const std::uint8_t* codes, std::size_t count, const LookupTable& table, Accumulate mode,
                std::uint16_t* aggregate) noexcept {
  HWY_DYNAMIC_DISPATCH(lookup_sum_16)(codes, count, table, mode, aggregate);
}

bool has_negative_be(const std::uint8_t* norms_be, std::size_t count) noexcept {
  std::uint8_t first_bytes = 0;
  for (std::size_t i = 0; i < count; ++i) first_bytes |= norms_be[4 * i];
  return (first_bytes & 0x80) != 0;
}

// One float per rotation block: too few for vectors to matter.
void max_norms_be(const std::uint8_t* norms_be, std::size_t count, Accumulate mode, std::uint8_t* maximum_be) noexcept {
  const auto load = [](const std::uint8_t* from) {
    std::uint32_t word = 0;
    std::memcpy(&word, from, sizeof(word));
    return to_big_endian(word);
  };
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t word = load(norms_be + 4 * i);
    if (mode == Accumulate::kAdd) {
      word = std::max(word, load(maximum_be + 4 * i));
    }
    word = to_big_endian(word);
    std::memcpy(maximum_be + 4 * i, &word, sizeof(word));
  }
}

}  // namespace thc
#endif
