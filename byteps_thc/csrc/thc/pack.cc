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
/// The vector loops stop when less than a vector of the stream is left: that is up to 120 codes of one bit. With so
/// many codes as this in all, zeros behind the left ones, they do at least 136: all that was left.
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

/// Packs the first codes, 16 at a time; returns how many.
HWY_ATTR std::size_t pack_vectors(const std::uint8_t* codes, std::size_t count, unsigned bits, std::uint8_t* packed) {
  constexpr std::size_t kStep = 16;
  if (bits == 8) {
    std::copy_n(codes, count, packed);
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
    const V8 ones = hn::And(hn::LoadU(D8(), codes + done), mask);
    const auto twos = join_halves(D16(), hn::BitCast(D16(), ones), bits);
    const auto fours = join_halves(D32(), hn::BitCast(D32(), twos), 2 * bits);
    const auto eights = join_halves(D64(), hn::BitCast(D64(), fours), 4 * bits);
    hn::StoreU(hn::TableLookupBytesOr0(hn::BitCast(D8(), eights), shuffle), D8(), packed + done / 8 * bits);
  }
  return done;
}

/// Takes eight codes out of the vector that begins with them: each lane gets the bytes that its code is in, and shifts
/// the bits before and after it out.
class Window {
 public:
  HWY_INLINE explicit Window(unsigned bits) : right_(static_cast<int>(8 * sizeof(std::uint16_t) - bits)) {
    Shuffle shuffle;
    std::array<std::uint16_t, hn::MaxLanes(D16())> left;
    for (std::size_t lane = 0; lane < left.size(); ++lane) {
      const std::size_t bit = lane * bits;
      left[lane] = static_cast<std::uint16_t>(bit % 8);
      shuffle.sources[2 * lane + 1] = static_cast<std::uint8_t>(bit / 8);
      shuffle.sources[2 * lane] = static_cast<std::uint8_t>(bit / 8 + 1);
    }
    shuffle_ = shuffle.load();
    left_ = hn::LoadU(D16(), left.data());
  }

  HWY_INLINE hn::Vec<D16> codes(V8 stream) const {
    const auto window = hn::BitCast(D16(), hn::TableLookupBytesOr0(stream, shuffle_));
    return hn::ShiftRightSame(hn::Shl(window, left_), right_);
  }

 private:
  V8 shuffle_;
  hn::Vec<D16> left_;
  int right_;
};

/// Unpacks the first codes, 8 at a time; returns how many.
HWY_ATTR std::size_t unpack_vectors(const std::uint8_t* packed, std::size_t count, unsigned bits, std::uint8_t* codes) {
  const hn::Rebind<std::uint8_t, D16> half;
  constexpr std::size_t kStep = hn::MaxLanes(D16());
  const Window window(bits);
  std::size_t done = 0;
  for (; fits(count - done, kStep, bits); done += kStep) {
    const V8 stream = hn::LoadU(D8(), packed + done / 8 * bits);
    hn::StoreU(hn::TruncateTo(half, window.codes(stream)), half, codes + done);
  }
  return done;
}

/// All codes: what is too short for whole vectors is done once more, with room behind it.
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
HWY_ATTR void unpack_rest(const std::uint8_t* packed, std::size_t count, unsigned bits, std::uint8_t* codes) {
  const std::size_t done = unpack_vectors(packed, count, bits, codes);
  if (done == count) {
    return;
  }
  std::array<std::uint8_t, kRoom> rest;
  std::array<std::uint8_t, sizeof(rest)> stream{};
  std::copy_n(packed + done / 8 * bits, code_bytes(count - done, bits), stream.data());
  unpack_vectors(stream.data(), kRoom, bits, rest.data());
  std::copy_n(rest.data(), count - done, codes + done);
}

HWY_ATTR void unpack_codes(const std::uint8_t* packed, std::size_t count, unsigned bits, std::uint8_t* codes) {
  if (bits == 8) {
    std::copy_n(packed, count, codes);
    return;
  }
  using code_vectors::kVectorCodes;
  std::size_t done = 0;
  if constexpr (kVectorCodes > kVectorBytes) {
    const code_vectors::D8 d;
    const code_vectors::FieldReader reader(bits);
    const auto mask = hn::Set(d, static_cast<std::uint8_t>((1U << bits) - 1));
    for (; reader.fits(count - done); done += kVectorCodes) {
      hn::StoreU(hn::And(reader(packed + done / 8 * bits), mask), d, codes + done);
    }
  }
  unpack_rest(packed + done / 8 * bits, count - done, bits, codes + done);
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
