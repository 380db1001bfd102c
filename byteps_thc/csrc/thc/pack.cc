#include "thc/pack.h"

#include <algorithm>
#include <array>
#include <bit>

#include "thc/bit_stream.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thc/pack.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "thc/code_vectors-inl.h"

// Vectors have 128 bits, but for those of code_vectors: byte shuffles stay within as much. Loads and stores of the
// stream are whole vectors, of which a step uses the first bytes; the next store overwrites what the last one wrote too
// much.
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
/// The vector loops stop when less than a vector of the stream is left: that is up to 120 numbers of one bit. With so
/// many numbers as this in all, zeros behind the left ones, they do at least 136: all that was left.
constexpr std::size_t kRoom = 256;

/// Where each byte of a vector comes from.
struct Shuffle {
  std::array<std::uint8_t, kVectorBytes> sources;

  Shuffle() { sources.fill(kNoByte); }
  HWY_INLINE V8 load() const { return hn::LoadU(D8(), sources.data()); }
};

/// Joins neighbours: of each lane, the lower half (the earlier one) goes above the upper half, which has `bits` bits.
template <class D>
HWY_INLINE hn::Vec<D> join_halves(D /*tag*/, hn::Vec<D> pairs, unsigned bits) {
  constexpr int kHalf = sizeof(hn::TFromD<D>) * 4;
  return hn::Or(hn::ShiftRightSame(hn::ShiftLeft<kHalf>(pairs), kHalf - static_cast<int>(bits)),
                hn::ShiftRight<kHalf>(pairs));
}

/// Whether a step, of that many numbers and a whole vector of the stream, may be taken.
HWY_INLINE bool fits(std::size_t count, std::size_t step, unsigned bits) {
  return count >= step && code_bytes(count, bits) >= kVectorBytes;
}

/// Packs the first numbers, 16 at a time; returns how many.
HWY_ATTR std::size_t pack_vectors(const std::uint8_t* numbers, std::size_t count, unsigned bits, std::uint8_t* packed) {
  constexpr std::size_t kStep = 16;
  if (bits == 8) {
    std::copy_n(numbers, count, packed);
    return count;
  }
  const V8 mask = hn::Set(D8(), static_cast<std::uint8_t>((1U << bits) - 1));
  Shuffle big_endian;
  for (unsigned byte = 0; byte < std::min<std::size_t>(2 * bits, kVectorBytes); ++byte) {  // of two lanes
    big_endian.sources[byte] = static_cast<std::uint8_t>(byte / bits * sizeof(std::uint64_t) + bits - 1 - byte % bits);
  }
  const V8 shuffle = big_endian.load();
  std::size_t done = 0;
  for (; fits(count - done, kStep, bits); done += kStep) {
    const V8 ones = hn::And(hn::LoadU(D8(), numbers + done), mask);
    const auto twos = join_halves(D16(), hn::BitCast(D16(), ones), bits);
    const auto fours = join_halves(D32(), hn::BitCast(D32(), twos), 2 * bits);
    const auto eights = join_halves(D64(), hn::BitCast(D64(), fours), 4 * bits);
    hn::StoreU(hn::TableLookupBytesOr0(hn::BitCast(D8(), eights), shuffle), D8(), packed + done / 8 * bits);
  }
  return done;
}

/// Packs the first numbers, 8 at a time; returns how many.
HWY_ATTR std::size_t pack_vectors(const std::uint16_t* numbers, std::size_t count, unsigned bits,
                                  std::uint8_t* packed) {
  constexpr std::size_t kStep = 8;
  // Fours fill the upper bits of a lane; the second one's begin where the first one's end, maybe inside of a byte.
  const unsigned fours_bits = 4 * bits;
  const unsigned shared_byte = fours_bits / 8;
  const std::array<std::uint64_t, 2> to_the_top{64 - fours_bits, 64 - fours_bits - fours_bits % 8};
  const auto shift = hn::LoadU(D64(), to_the_top.data());
  Shuffle first;
  Shuffle second;
  for (unsigned byte = 0; 8 * byte < fours_bits; ++byte) {
    first.sources[byte] = static_cast<std::uint8_t>(7 - byte);
    second.sources[shared_byte + byte] = static_cast<std::uint8_t>(15 - byte);
  }
  const V8 first_shuffle = first.load();
  const V8 second_shuffle = second.load();
  const auto mask = hn::Set(D16(), static_cast<std::uint16_t>((1U << bits) - 1));
  std::size_t done = 0;
  for (; fits(count - done, kStep, bits); done += kStep) {
    const auto ones = hn::And(hn::LoadU(D16(), numbers + done), mask);
    const auto twos = join_halves(D32(), hn::BitCast(D32(), ones), bits);
    const auto fours = hn::Shl(join_halves(D64(), hn::BitCast(D64(), twos), 2 * bits), shift);
    const V8 bytes = hn::BitCast(D8(), fours);
    hn::StoreU(hn::Or(hn::TableLookupBytesOr0(bytes, first_shuffle), hn::TableLookupBytesOr0(bytes, second_shuffle)),
               D8(), packed + done / 8 * bits);
  }
  return done;
}

/// Takes numbers first .. first + Lanes(D) of every eight out of the vector that begins with them: each lane gets the
/// bytes that its number is in, and shifts the bits before and after it out.
template <class D>
class Window {
 public:
  using Lane = hn::TFromD<D>;

  HWY_INLINE Window(std::size_t first, unsigned bits) : right_(static_cast<int>(8 * sizeof(Lane) - bits)) {
    Shuffle shuffle;
    std::array<Lane, kVectorBytes / sizeof(Lane)> left;
    for (std::size_t lane = 0; lane < left.size(); ++lane) {
      const std::size_t bit = (first + lane) * bits;
      left[lane] = static_cast<Lane>(bit % 8);
      for (std::size_t byte = 0; byte < sizeof(Lane) && bit / 8 + byte < kVectorBytes; ++byte) {
        shuffle.sources[(lane + 1) * sizeof(Lane) - 1 - byte] = static_cast<std::uint8_t>(bit / 8 + byte);
      }
    }
    shuffle_ = shuffle.load();
    left_ = hn::LoadU(D(), left.data());
  }

  HWY_INLINE hn::Vec<D> numbers(V8 stream) const {
    const auto window = hn::BitCast(D(), hn::TableLookupBytesOr0(stream, shuffle_));
    return hn::ShiftRightSame(hn::Shl(window, left_), right_);
  }

 private:
  V8 shuffle_;
  hn::Vec<D> left_;
  int right_;
};

/// Unpacks the first numbers, 8 at a time; returns how many.
template <class Number>
HWY_ATTR std::size_t unpack_vectors(const std::uint8_t* packed, std::size_t count, unsigned bits, Number* numbers) {
  constexpr std::size_t kStep = 8;
  using Wide = hn::Full128<hwy::MakeWide<Number>>;
  const hn::Rebind<Number, Wide> half;
  constexpr std::size_t kLanes = hn::MaxLanes(Wide());
  const Window<Wide> first(0, bits);
  const Window<Wide> last(kStep - kLanes, bits);  // the first one again when it has all lanes
  std::size_t done = 0;
  for (; fits(count - done, kStep, bits); done += kStep) {
    const V8 stream = hn::LoadU(D8(), packed + done / 8 * bits);
    hn::StoreU(hn::TruncateTo(half, first.numbers(stream)), half, numbers + done);
    if constexpr (kLanes < kStep) {
      hn::StoreU(hn::TruncateTo(half, last.numbers(stream)), half, numbers + done + kLanes);
    }
  }
  return done;
}

/// All numbers: what is too short for whole vectors is done once more, with room behind it.
template <class Number>
HWY_ATTR void pack_all(const Number* numbers, std::size_t count, unsigned bits, std::uint8_t* packed) {
  const std::size_t done = pack_vectors(numbers, count, bits, packed);
  if (done == count) {
    return;
  }
  std::array<Number, kRoom> rest{};
  std::array<std::uint8_t, sizeof(rest)> stream;
  std::copy_n(numbers + done, count - done, rest.data());
  pack_vectors(rest.data(), kRoom, bits, stream.data());
  std::copy_n(stream.data(), code_bytes(count - done, bits), packed + done / 8 * bits);
}

/// See pack_all.
template <class Number>
HWY_ATTR void unpack_all(const std::uint8_t* packed, std::size_t count, unsigned bits, Number* numbers) {
  const std::size_t done = unpack_vectors(packed, count, bits, numbers);
  if (done == count) {
    return;
  }
  std::array<Number, kRoom> rest;
  std::array<std::uint8_t, sizeof(rest)> stream{};
  std::copy_n(packed + done / 8 * bits, code_bytes(count - done, bits), stream.data());
  unpack_vectors(stream.data(), kRoom, bits, rest.data());
  std::copy_n(rest.data(), count - done, numbers + done);
}

HWY_ATTR void pack_8(const std::uint8_t* numbers, std::size_t count, unsigned bits, std::uint8_t* packed) {
  pack_all(numbers, count, bits, packed);
}
HWY_ATTR void pack_16(const std::uint16_t* numbers, std::size_t count, unsigned bits, std::uint8_t* packed) {
  pack_all(numbers, count, bits, packed);
}
HWY_ATTR void unpack_8(const std::uint8_t* packed, std::size_t count, unsigned bits, std::uint8_t* numbers) {
  if (bits == 8) {
    std::copy_n(packed, count, numbers);
    return;
  }
  using code_vectors::kVectorCodes;
  std::size_t done = 0;
  if constexpr (kVectorCodes > kVectorBytes) {
    const code_vectors::D8 d;
    const code_vectors::FieldReader reader(bits);
    const auto mask = hn::Set(d, static_cast<std::uint8_t>((1U << bits) - 1));
    for (; reader.fits(count - done); done += kVectorCodes) {
      hn::StoreU(hn::And(reader(packed + done / 8 * bits), mask), d, numbers + done);
    }
  }
  unpack_all(packed + done / 8 * bits, count - done, bits, numbers + done);
}
HWY_ATTR void unpack_16(const std::uint8_t* packed, std::size_t count, unsigned bits, std::uint16_t* numbers) {
  unpack_all(packed, count, bits, numbers);
}

}  // namespace HWY_NAMESPACE
}  // namespace thc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thc {
namespace {

HWY_EXPORT(pack_8);
HWY_EXPORT(pack_16);
HWY_EXPORT(unpack_8);
HWY_EXPORT(unpack_16);

}  // namespace

void pack(const std::uint8_t* numbers, std::size_t count, unsigned bits, std::uint8_t* packed) noexcept {
  HWY_DYNAMIC_DISPATCH(pack_8)(numbers, count, bits, packed);
}

void pack(const std::uint16_t* numbers, std::size_t count, unsigned bits, std::uint8_t* packed) noexcept {
  HWY_DYNAMIC_DISPATCH(pack_16)(numbers, count, bits, packed);
}

void unpack(const std::uint8_t* packed, std::size_t count, unsigned bits, std::uint8_t* numbers) noexcept {
  HWY_DYNAMIC_DISPATCH(unpack_8)(packed, count, bits, numbers);
}

void unpack(const std::uint8_t* packed, std::size_t count, unsigned bits, std::uint16_t* numbers) noexcept {
  HWY_DYNAMIC_DISPATCH(unpack_16)(packed, count, bits, numbers);
}

}  // namespace thc
#endif
