#include "thc/requantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "csrc/naive/kernels.h"
#include "thc/bit_stream.h"

namespace thc::naive {
namespace {

/// What sum j stands for.
float centered_at(const ExactSums& exact, std::size_t j) {
  const auto* bytes = static_cast<const std::uint8_t*>(exact.sums);
  std::uint16_t sum = exact.value_bits == 8 ? bytes[j] : std::uint16_t{0};
  if (exact.value_bits == 16) {
    std::memcpy(&sum, bytes + 2 * j, sizeof(sum));
  }
  return static_cast<float>(2 * std::int64_t{sum} - std::int64_t{exact.most});
}

}  // namespace

void requantize(const ExactSums& exact, const LookupTable& table, const RandomKey& key, std::uint8_t* codes,
                std::uint16_t* scales) {
  for (std::size_t first = 0; first < exact.count; first += kScaleGroup) {
    std::vector<float> group(std::min(kScaleGroup, exact.count - first));
    float largest = 0;
    for (std::size_t j = 0; j < group.size(); ++j) {
      group[j] = centered_at(exact, first + j);
      largest = std::max(largest, std::fabs(group[j]));
    }
    const auto scale = static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(largest) + 0xFFFF) >> 16);
    std::memcpy(scales + first / kScaleGroup, &scale, sizeof(scale));
    // In blocks of 64, all with the limit of the group.
    const BlockLayout layout(group.size(), kMinRotationBlock);
    const std::vector<float> limits(layout.blocks(), std::bit_cast<float>(std::uint32_t{scale} << 16));
    QuantizeOptions options{1.0F, key, {kRequantizeDomain, 0}, false};
    options.key.first += first;
    naive::quantize(group.data(), limits.data(), layout, table, options, codes + code_bytes(first, table.bits()));
  }
}

}  // namespace thc::naive
