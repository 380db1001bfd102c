#include "thc/requantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "csrc/naive/kernels.h"
#include "thc/bit_stream.h"
#include "thc/clamp_range.h"

namespace thc::naive {
namespace {

/// What sum j stands for; key.first: the coordinate of the first one.
float centered_at(const ExactSums& exact, const RandomKey& key, std::size_t j) {
  const auto* bytes = static_cast<const std::uint8_t*>(exact.sums);
  std::uint16_t sum = exact.value_bits == 8 ? bytes[j] : std::uint16_t{0};
  if (exact.value_bits == 16) {
    std::memcpy(&sum, bytes + 2 * j, sizeof(sum));
  }
  float known = 0;
  if (exact.known != nullptr) {
    known = exact.known->at(known_sum_bits(rounding_bits(key, {exact.domain, 0}, j), exact.workers));
  }
  return 2 * (static_cast<float>(sum) - known) - static_cast<float>(exact.most);
}

}  // namespace

void requantize(const ExactSums& exact, const LookupTable& table, const RandomKey& key, std::uint8_t* codes,
                std::uint16_t* scales) {
  for (std::size_t first = 0; first < exact.count; first += kScaleGroup) {
    std::vector<float> group(std::min(kScaleGroup, exact.count - first));
    float largest = 0;
    for (std::size_t j = 0; j < group.size(); ++j) {
      group[j] = centered_at(exact, key, first + j);
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

void keep_loss(const RequantizedSums& sums, const LookupTable& table, const float* max_norms, float threshold,
               const BlockLayout& layout, const RandomKey& key, Floats residual) {
  std::vector<float> lost(layout.padded());
  std::vector<float> rotated_back(layout.coordinates());
  RandomKey sums_key = key;
  sums_key.first = sums.first;
  for (std::size_t b = 0; b < layout.blocks(); ++b) {
    const ClampRange range(max_norms[b], threshold, sums.granularity);
    for (std::size_t j = layout.offset(b); j < layout.offset(b) + layout.size(b); ++j) {
      if (!range.finite || key.first + j < sums.first || key.first + j >= sums.first + sums.exact.count) continue;
      const std::size_t at = key.first + j - sums.first;
      std::uint16_t scale = 0;
      std::memcpy(&scale, sums.scales + at / kScaleGroup, sizeof(scale));
      const ClampRange group(scale_value(scale), 1.0F, table.granularity());
      const auto value = static_cast<float>(table.values()[read_code(sums.codes, at, table.bits())]);
      const float stands_for = value * group.step - group.limit;
      lost[j] =
          (centered_at(sums.exact, sums_key, at) - stands_for) * (range.limit / static_cast<float>(sums.granularity));
    }
  }
  naive::inverse_rotate(lost.data(), layout, key, {rotated_back.data(), FloatFormat::kFp32});
  for (std::size_t j = 0; j < layout.coordinates(); ++j) {
    float carried = 0;
    naive::to_fp32(residual + j, 1, &carried);
    carried += rotated_back[j];
    naive::from_fp32(&carried, 1, residual + j);
  }
}

}  // namespace thc::naive
