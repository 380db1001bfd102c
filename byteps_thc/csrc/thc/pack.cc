#include "thc/pack.h"

#include <algorithm>
#include <cstring>

#include "thc/bit_stream.h"
#include "thc/byte_order.h"
#include "thc/instruction_set.h"

namespace thc {
namespace {

constexpr std::size_t kGroup = 8;  // eight codes are `bits` whole bytes

constexpr std::uint64_t kOddBytes = 0x00ff00ff00ff00ff;
constexpr std::uint64_t kOddPairs = 0x0000ffff0000ffff;
constexpr std::uint64_t kLowerHalf = 0x00000000ffffffff;

/// Eight codes in the bytes of a word, first one on top -> 8 * bits bits: closes the gaps between neighbours, then
/// between pairs, then between fours.
std::uint64_t close_gaps(std::uint64_t x, unsigned bits) noexcept {
  x &= 0x0101010101010101U * ((1U << bits) - 1U);
  x = ((x & ~kOddBytes) >> (8 - bits)) | (x & kOddBytes);
  x = ((x & ~kOddPairs) >> (16 - 2 * bits)) | (x & kOddPairs);
  return ((x & ~kLowerHalf) >> (32 - 4 * bits)) | (x & kLowerHalf);
}

/// Inverse of close_gaps.
std::uint64_t open_gaps(std::uint64_t x, unsigned bits) noexcept {
  const auto lower = [](unsigned count) { return (std::uint64_t{1} << count) - 1; };
  x = ((x & ~lower(4 * bits)) << (32 - 4 * bits)) | (x & lower(4 * bits));
  const std::uint64_t pairs = lower(2 * bits) * 0x0000000100000001U;
  x = ((x & ~pairs) << (16 - 2 * bits)) | (x & pairs);
  const std::uint64_t singles = lower(bits) * 0x0001000100010001U;
  return ((x & ~singles) << (8 - bits)) | (x & singles);
}

}  // namespace

void pack(const std::uint8_t* codes, std::size_t count, unsigned bits, std::uint8_t* packed) noexcept {
  if (naive_selected()) {
    return naive::pack(codes, count, bits, packed);
  }
  const auto pack_group = [bits](const std::uint8_t* from, std::size_t used) {
    std::uint64_t group = 0;
    std::memcpy(&group, from, used);
    return to_big_endian(close_gaps(to_big_endian(group), bits) << (64 - 8 * bits));
  };
  // Whole words as long as they fit; what they write beyond their group is overwritten by the next one.
  for (; count >= kGroup && code_bytes(count, bits) >= sizeof(std::uint64_t); count -= kGroup) {
    const std::uint64_t group = pack_group(codes, kGroup);
    std::memcpy(packed, &group, sizeof(group));
    codes += kGroup;
    packed += bits;
  }
  while (count > 0) {
    const std::size_t used = std::min(count, kGroup);
    const std::uint64_t group = pack_group(codes, used);
    std::memcpy(packed, &group, code_bytes(used, bits));
    codes += used;
    packed += bits;
    count -= used;
  }
}

void unpack(const std::uint8_t* packed, std::size_t count, unsigned bits, std::uint8_t* codes) noexcept {
  if (naive_selected()) {
    return naive::unpack(packed, count, bits, codes);
  }
  const auto unpack_group = [bits](const std::uint8_t* from, std::size_t bytes) {
    std::uint64_t group = 0;
    std::memcpy(&group, from, bytes);
    return to_big_endian(open_gaps(to_big_endian(group) >> (64 - 8 * bits), bits));
  };
  // Whole words as long as they fit; of what they read, the next group is left out by the shift.
  for (; count >= kGroup && code_bytes(count, bits) >= sizeof(std::uint64_t); count -= kGroup) {
    const std::uint64_t group = unpack_group(packed, sizeof(group));
    std::memcpy(codes, &group, sizeof(group));
    codes += kGroup;
    packed += bits;
  }
  while (count > 0) {
    const std::size_t used = std::min(count, kGroup);
    const std::uint64_t group = unpack_group(packed, code_bytes(used, bits));
    std::memcpy(codes, &group, used);
    codes += used;
    packed += bits;
    count -= used;
  }
}

namespace naive {

void pack(const std::uint8_t* codes, std::size_t count, unsigned bits, std::uint8_t* packed) noexcept {
  std::fill_n(packed, code_bytes(count, bits), std::uint8_t{0});
  for (std::size_t i = 0; i < count * bits; ++i) {  // bit by bit
    const unsigned bit = (codes[i / bits] >> (bits - 1 - i % bits)) & 1U;
    packed[i / 8] = static_cast<std::uint8_t>(packed[i / 8] | (bit << (7 - i % 8)));
  }
}

void unpack(const std::uint8_t* packed, std::size_t count, unsigned bits, std::uint8_t* codes) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    codes[i] = static_cast<std::uint8_t>(read_code(packed, i, bits));
  }
}

}  // namespace naive
}  // namespace thc
