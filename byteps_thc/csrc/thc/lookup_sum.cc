#include "thc/lookup_sum.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "thc/byte_order.h"
#include "thc/pack.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thc/lookup_sum.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "thc/code_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thc {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using code_vectors::ByteReader;
using code_vectors::ByteTable;
using code_vectors::D16;
using code_vectors::D8;
using code_vectors::FieldReader;
using code_vectors::kBlocks;
using code_vectors::kVectorCodes;
using code_vectors::NibbleReader;
using code_vectors::V8;

/// The bytes (0: lower, 1: upper) of the values of a table, repeated to kHeld bytes.
template <std::size_t kHeld>
HWY_INLINE std::array<std::uint8_t, kHeld> value_bytes(const LookupTable& table, unsigned byte) {
  const auto values = table.values();  // 2^bits
  std::array<std::uint8_t, kHeld> bytes;
  for (std::size_t i = 0; i < kHeld; ++i) {
    bytes[i] = static_cast<std::uint8_t>(values[i & (values.size() - 1)] >> (8 * byte));
  }
  return bytes;
}

template <bool kAdd, class D>
HWY_INLINE void accumulate(D d, hn::Vec<D> values, hn::TFromD<D>* aggregate) {
  hn::StoreU(kAdd ? hn::Add(values, hn::LoadU(d, aggregate)) : values, d, aggregate);
}

/// Permutes lanes of 64 bits so that interleaving within blocks of 128 bits gives lanes in order.
class InterleavingOrder {
 public:
  HWY_INLINE InterleavingOrder() : source_(hn::SetTableIndices(D64(), source_lanes().data())) {}
  HWY_INLINE V8 operator()(V8 bytes) const {
    return kBlocks == 1 ? bytes : hn::BitCast(D8(), hn::TableLookupLanes(hn::BitCast(D64(), bytes), source_));
  }

 private:
  using D64 = hn::Repartition<std::uint64_t, D8>;
  static std::array<std::uint64_t, 2 * kBlocks> source_lanes() {
    std::array<std::uint64_t, 2 * kBlocks> lanes;
    for (std::size_t b = 0; b < kBlocks; ++b) {
      lanes[2 * b] = b;
      lanes[2 * b + 1] = kBlocks + b;
    }
    return lanes;
  }
  decltype(hn::SetTableIndices(D64(), static_cast<const std::uint64_t*>(nullptr))) source_;
};

/// Values of codes, to be added to 8-bit sums.
template <class Table>
class Values8 {
 public:
  HWY_INLINE explicit Values8(const LookupTable& table) : bytes_(value_bytes<Table::kHeld>(table, 0).data()) {}
  template <bool kAdd>
  HWY_INLINE void accumulate_to(V8 codes, std::uint8_t* aggregate) const {
    accumulate<kAdd>(D8(), bytes_[codes], aggregate);
  }

 private:
  Table bytes_;
};

/// The same for 16-bit sums: values are looked up a byte at a time.
template <class Table>
class Values16 {
 public:
  HWY_INLINE explicit Values16(const LookupTable& table)
      : low_(value_bytes<Table::kHeld>(table, 0).data()), high_(value_bytes<Table::kHeld>(table, 1).data()) {}
  template <bool kAdd>
  HWY_INLINE void accumulate_to(V8 codes, std::uint16_t* aggregate) const {
    const V8 in_order = order_(codes);
    const V8 low = low_[in_order];
    const V8 high = high_[in_order];
    const D16 d;
    accumulate<kAdd>(d, hn::ZipLower(d, low, high), aggregate);
    accumulate<kAdd>(d, hn::ZipUpper(d, low, high), aggregate + kVectorCodes / 2);
  }

 private:
  InterleavingOrder order_;
  Table low_;
  Table high_;
};

/// Sums whole vectors of codes; returns how many codes were done.
template <class Reader, class Values, bool kAdd, class Sum>
HWY_INLINE std::size_t sum_vectors(const std::uint8_t* codes, std::size_t count, const LookupTable& table,
                                   Sum* aggregate) {
  const Reader reader(table.bits());
  const Values values(table);
  const std::size_t step_bytes = kVectorCodes / 8 * table.bits();
  std::size_t left = count;
  for (; reader.fits(left); left -= kVectorCodes, codes += step_bytes, aggregate += kVectorCodes) {
    values.template accumulate_to<kAdd>(reader(codes), aggregate);
  }
  return count - left;
}

#if HWY_TARGET != HWY_AVX3_DL
/// Hot case, four bits into 8-bit sums, two vectors at a time: looks both nibbles of a byte up, and interleaves.
template <bool kAdd>
HWY_INLINE std::size_t sum_nibbles(const std::uint8_t* codes, std::size_t count, const LookupTable& table,
                                   std::uint8_t* aggregate) {
  const D8 d;
  const hn::Repartition<std::uint64_t, D8> d64;
  const InterleavingOrder order;
  const ByteTable<16> values(value_bytes<16>(table, 0).data());
  const V8 nibble = hn::Set(d, 0x0f);
  std::size_t i = 0;
  for (; i + 2 * kVectorCodes <= count; i += 2 * kVectorCodes) {
    const V8 packed = order(hn::LoadU(d, codes + i / 2));
    const V8 upper = hn::And(hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(d64, packed))), nibble);
    const V8 first = values[upper];
    const V8 second = values[hn::And(packed, nibble)];
    accumulate<kAdd>(d, hn::InterleaveLower(d, first, second), aggregate + i);
    accumulate<kAdd>(d, hn::InterleaveUpper(d, first, second), aggregate + i + kVectorCodes);
  }
  return i;
}
#endif

/// Whole vectors of codes of every width; `Values` is Values8 or Values16.
template <template <class> class Values, bool kAdd, class Sum>
HWY_INLINE std::size_t sum_vectors_of(const std::uint8_t* codes, std::size_t count, const LookupTable& table,
                                      Sum* aggregate) {
  switch (table.bits()) {
    case 8:
      return sum_vectors<ByteReader, Values<ByteTable<256>>, kAdd>(codes, count, table, aggregate);
    case 7:
      return sum_vectors<FieldReader, Values<ByteTable<128>>, kAdd>(codes, count, table, aggregate);
    case 6:
      return sum_vectors<FieldReader, Values<ByteTable<64>>, kAdd>(codes, count, table, aggregate);
    case 5:
      return sum_vectors<FieldReader, Values<ByteTable<32>>, kAdd>(codes, count, table, aggregate);
#if HWY_TARGET != HWY_AVX3_DL
    case 4:
      return sum_vectors<NibbleReader, Values<ByteTable<16>>, kAdd>(codes, count, table, aggregate);
#endif
    default:
      return sum_vectors<FieldReader, Values<ByteTable<16>>, kAdd>(codes, count, table, aggregate);
  }
}

/// Sums the rest behind whole vectors. Sums may be unaligned.
template <bool kAdd, class Sum>
HWY_INLINE void sum_rest(const std::uint8_t* codes, std::size_t count, const LookupTable& table, Sum* aggregate) {
  auto* bytes = reinterpret_cast<std::uint8_t*>(aggregate);
  for (std::size_t i = 0; i < count; ++i) {
    Sum sum = 0;
    if constexpr (kAdd) std::memcpy(&sum, bytes + i * sizeof(Sum), sizeof(Sum));
    sum = static_cast<Sum>(sum + table.values()[read_code(codes, i, table.bits())]);
    std::memcpy(bytes + i * sizeof(Sum), &sum, sizeof(Sum));
  }
}

template <template <class> class Values, bool kAdd, class Sum>
HWY_INLINE void sum_codes(const std::uint8_t* codes, std::size_t count, const LookupTable& table, Sum* aggregate) {
  std::size_t done = 0;
#if HWY_TARGET != HWY_AVX3_DL
  if constexpr (sizeof(Sum) == 1) {
    done = table.bits() == 4 ? sum_nibbles<kAdd>(codes, count, table, aggregate) : 0;
  }
#endif
  done += sum_vectors_of<Values, kAdd>(codes + done / 8 * table.bits(), count - done, table, aggregate + done);
  sum_rest<kAdd>(codes + done / 8 * table.bits(), count - done, table, aggregate + done);
}

HWY_ATTR void lookup_sum_8(const std::uint8_t* codes, std::size_t count, const LookupTable& table, Accumulate mode,
                           std::uint8_t* aggregate) {
  mode == Accumulate::kAdd ? sum_codes<Values8, true>(codes, count, table, aggregate)
                           : sum_codes<Values8, false>(codes, count, table, aggregate);
}

HWY_ATTR void lookup_sum_16(const std::uint8_t* codes, std::size_t count, const LookupTable& table, Accumulate mode,
                            std::uint16_t* aggregate) {
  mode == Accumulate::kAdd ? sum_codes<Values16, true>(codes, count, table, aggregate)
                           : sum_codes<Values16, false>(codes, count, table, aggregate);
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
