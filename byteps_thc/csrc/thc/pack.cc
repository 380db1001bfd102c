#include "thc/pack.h"

#include <algorithm>
#include <array>
#include <bit>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thc/pack.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "thc/code_vectors-inl.h"

// Vectors have 128 bits, as byte shuffles do, except code_vectors'. Loads and stores of the stream are whole vectors. A
// step uses their first bytes; the next store overwrites the rest.
HWY_BEFORE_NAMESPACE();
namespace thc {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

static_assert(std::endian::native == std::endian::little, "lanes of numbers are joined by shifts of wider ones");

using D8 = hn::Full128<std::uint8_t>;
using D16 = hn::Full128<std::uint16_t>;
using D32 = hn::Full128<std::uint32_t>;
using D64 = hn::Full128<std::uint64_t>;
using V8 = hn::Vec<D8>;

constexpr std::size_t kVectorBytes = 16;
constexpr std::uint8_t kNoByte = 0x80;  // shuffles to zero
/// Codes to pad the rest with zeros to. Vector loops leave up to 168 codes of one bit, and take 192 of so many.
constexpr std::size_t kRoom = 320;

/// Joins neighbours: of each lane, the lower half (the earlier one) goes above the upper half, which has `bits` bits.
template <class D>
HWY_INLINE hn::Vec<D> join_halves(D /*tag*/, hn::Vec<D> pairs, unsigned bits) {
  constexpr int kHalf = sizeof(hn::TFromD<D>) * 4;
  return hn::Or(hn::ShiftRightSame(hn::ShiftLeft<kHalf>(pairs), kHalf - static_cast<int>(bits)),
                hn::ShiftRight<kHalf>(pairs));
}

/// Packs the first codes, 16 at a time; returns how many.
HWY_ATTR std::size_t pack_vectors(const std::uint8_t* codes, std::size_t count, unsigned bits, std::uint8_t* packed) {
  constexpr std::size_t kStep = 16;
  if (bits == 8) {
    std::copy_n(codes, count, packed);
    return count;
  }
  const V8 mask = hn::Set(D8(), static_cast<std::uint8_t>((1U << bits) - 1));
  std::array<std::uint8_t, kVectorBytes> big_endian;  // source of each byte
  big_endian.fill(kNoByte);
  for (unsigned byte = 0; byte < std::min<std::size_t>(2 * bits, kVectorBytes); ++byte) {  // of two lanes
    big_endian[byte] = static_cast<std::uint8_t>(byte / bits * sizeof(std::uint64_t) + bits - 1 - byte % bits);
  }
  const V8 shuffle = hn::LoadU(D8(), big_endian.data());
  std::size_t done = 0;
  for (; count - done >= kStep && code_bytes(count - done, bits) >= kVectorBytes; done += kStep) {
    const V8 ones = hn::And(hn::LoadU(D8(), codes + done), mask);
    const auto twos = join_halves(D16(), hn::BitCast(D16(), ones), bits);
    const auto fours = join_halves(D32(), hn::BitCast(D32(), twos), 2 * bits);
    const auto eights = join_halves(D64(), hn::BitCast(D64(), fours), 4 * bits);
    hn::StoreU(hn::TableLookupBytesOr0(hn::BitCast(D8(), eights), shuffle), D8(), packed + done / 8 * bits);
  }
  return done;
}

/// Unpacks the first codes, a vector at a time; returns how many.
HWY_ATTR std::size_t unpack_vectors(const code_vectors::FieldReader& reader, const std::uint8_t* packed,
                                    std::size_t count, unsigned bits, std::uint8_t* codes) {
  const code_vectors::D8 d;
  const auto mask = hn::Set(d, static_cast<std::uint8_t>((1U << bits) - 1));
  std::size_t done = 0;
  for (; reader.fits(count - done); done += code_vectors::kVectorCodes) {
    hn::StoreU(hn::And(reader(packed + done / 8 * bits), mask), d, codes + done);
  }
  return done;
}

/// Packs all codes: the rest behind whole vectors in a padded copy.
HWY_ATTR void pack_codes(const std::uint8_t* codes, std::size_t count, unsigned bits, std::uint8_t* packed) {
  const std::size_t done = pack_vectors(codes, count, bits, packed);
  if (done == count) {
    return;
  }
  std::array<std::uint8_t, kRoom> rest{};
  std::array<std::uint8_t, sizeof(rest)> stream;
  std::copy_n(codes + done, count - done, rest.data());
  pack_vectors(rest.data(), kRoom, bits, stream.data());
  std::copy_n(stream.data(), code_bytes(count - done, bits), packed + done / 8 * bits);
}

/// See pack_codes.
HWY_ATTR void unpack_codes(const std::uint8_t* packed, std::size_t count, unsigned bits, std::uint8_t* codes) {
  if (bits == 8) {
    std::copy_n(packed, count, codes);
    return;
  }
  const code_vectors::FieldReader reader(bits);
  const std::size_t done = unpack_vectors(reader, packed, count, bits, codes);
  if (done == count) {
    return;
  }
  std::array<std::uint8_t, kRoom> rest;
  std::array<std::uint8_t, sizeof(rest)> stream{};
  std::copy_n(packed + done / 8 * bits, code_bytes(count - done, bits), stream.data());
  unpack_vectors(reader, stream.data(), kRoom, bits, rest.data());
  std::copy_n(rest.data(), count - done, codes + done);
}

}  // namespace HWY_NAMESPACE
}  // namespace thc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thc {
namespace {

HWY_EXPORT(pack_codes);
HWY_EXPORT(unpack_codes);

}  // namespace

void pack(const std::uint8_t* codes, std::size_t count, unsigned bits, std::uint8_t* packed) noexcept {
  HWY_DYNAMIC_DISPATCH(pack_codes)(codes, count, bits, packed);
}

void unpack(const std::uint8_t* packed, std::size_t count, unsigned bits, std::uint8_t* codes) noexcept {
  HWY_DYNAMIC_DISPATCH(unpack_codes)(packed, count, bits, codes);
}

}  // namespace thc
#endif
