#include "thc/checksum.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>

#if defined(__SSE4_2__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace thc {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::array<std::uint32_t, 256> kTable = [] {
  constexpr std::uint32_t kPolynomial = 0x82f63b78;  // Castagnoli's, reversed
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    table[i] = i;
    for (int bit = 0; bit < 8; ++bit) table[i] = table[i] >> 1 ^ (table[i] % 2 != 0 ? kPolynomial : 0);
  }
  return table;
}();

/// The register after 8 bytes more.
[[maybe_unused]] std::uint32_t step_by_table(std::uint32_t crc, std::uint64_t word) noexcept {
  for (int byte = 0; byte < 8; ++byte, word >>= 8) crc = crc >> 8 ^ kTable[(crc ^ word) % kTable.size()];
  return crc;
}

#if defined(__SSE4_2__)  // the baseline of all kernels
constexpr bool kHasInstruction = true;
std::uint32_t step_by_instruction(std::uint32_t crc, std::uint64_t word) noexcept {
  return static_cast<std::uint32_t>(_mm_crc32_u64(crc, word));
}
#elif defined(__aarch64__)  // optional in ARMv8.0
const bool kHasInstruction = (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
std::uint32_t step_by_instruction(std::uint32_t crc, std::uint64_t word) noexcept {
  asm(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
  return crc;
}
#else
constexpr bool kHasInstruction = false;
constexpr auto step_by_instruction = step_by_table;
#endif

std::uint64_t word_at(const std::uint8_t* bytes, std::size_t count = sizeof(std::uint64_t)) noexcept {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, count);
  return word;
}

template <auto kStep>
ChecksumLanes lanes_of(std::span<const std::uint8_t> payload) noexcept {
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  ChecksumLanes lanes{~0U, ~0U, ~0U, ~0U};
  const std::uint8_t* at = payload.data();
  std::size_t left = payload.size();
  for (; left >= lanes.size() * kWord; left -= lanes.size() * kWord) {
    for (std::uint32_t& lane : lanes) {
      lane = kStep(lane, word_at(at));
      at += kWord;
    }
  }
  for (std::size_t i = 0; left > 0; ++i) {
    const std::size_t count = std::min(left, kWord);
    lanes[i] = kStep(lanes[i], word_at(at, count));
    at += count;
    left -= count;
  }
  return lanes;
}

}  // namespace

ChecksumLanes checksum_lanes(std::span<const std::uint8_t> payload) noexcept {
  return kHasInstruction ? lanes_of<step_by_instruction>(payload) : lanes_of<step_by_table>(payload);
}

std::uint32_t checksum(std::span<const std::uint8_t, sizeof(wire::Header)> header,
                       const ChecksumLanes& lanes) noexcept {
  // CRCs are linear: at any multiple of 8 bytes, the same change of two words of the payload could cancel out.
  constexpr std::size_t kLaneBytes = 9;
  constexpr std::size_t kLanesBytes = 32;
  std::array<std::uint8_t, kLanesBytes + sizeof(wire::Header)> input{};  // zeros in place of the checksum
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    std::memcpy(input.data() + i * kLaneBytes, &lanes[i], sizeof lanes[i]);
  }
  std::memcpy(input.data() + kLanesBytes, header.data(), kChecksumOffset);
  std::uint32_t crc = ~0U;
  for (std::size_t i = 0; i < input.size(); i += sizeof(std::uint64_t)) {
    const std::uint64_t word = word_at(input.data() + i);
    crc = kHasInstruction ? step_by_instruction(crc, word) : step_by_table(crc, word);
  }
  return ~crc;
}

}  // namespace thc
