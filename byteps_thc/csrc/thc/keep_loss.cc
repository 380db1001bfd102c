#include "thc/keep_loss.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "thc/bit_stream.h"
#include "thc/clamp_range.h"
#include "thc/lookup_sum.h"
#include "thc/rotation.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thc/keep_loss.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace thc {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DI = hn::ScalableTag<std::int32_t>;

/// x[count] = (x - (value * step - limit)) * weight. count: a multiple of kMinRotationBlock.
HWY_ATTR void subtract_values(const std::uint8_t* values, std::size_t count, const ClampRange& range, float weight,
                              float* x) {
  const DF d;
  const hn::Rebind<std::uint8_t, DI> d8;
  const auto step = hn::Set(d, range.step);
  const auto limit = hn::Set(d, range.limit);
  for (std::size_t j = 0; j < count; j += hn::Lanes(d)) {
    const auto value = hn::ConvertTo(d, hn::PromoteTo(DI(), hn::LoadU(d8, values + j)));
    const auto lost = hn::Sub(hn::LoadU(d, x + j), hn::Sub(hn::Mul(value, step), limit));
    hn::StoreU(hn::Mul(lost, hn::Set(d, weight)), d, x + j);
  }
}

/// residual[count] += lost[count], neither aligned.
HWY_ATTR void add(const float* lost, std::size_t count, float* residual) {
  const DF d;
  std::size_t j = 0;
  for (; j + hn::Lanes(d) <= count; j += hn::Lanes(d)) {
    hn::StoreU(hn::Add(hn::LoadU(d, residual + j), hn::LoadU(d, lost + j)), d, residual + j);
  }
  for (; j < count; ++j) {
    float sum = 0;
    std::memcpy(&sum, residual + j, sizeof(sum));
    sum += lost[j];
    std::memcpy(residual + j, &sum, sizeof(sum));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace thc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thc {
namespace {

HWY_EXPORT(subtract_values);
HWY_EXPORT(add);

/// Coordinates of a tile, unless a rotation block is larger.
constexpr std::size_t kTile = 8192;

/// Working memory of a tile.
struct Tile {
  std::vector<float> lost;
  std::vector<float> rotated_back;
  std::vector<std::uint8_t> values;

  void resize(std::size_t size) {
    lost.assign(size, 0.0F);
    rotated_back.resize(std::max(rotated_back.size(), size));
    values.resize(std::max(values.size(), size));
  }
};

/// lost[to - from] = what coordinates from .. to - 1 of the partition, in one rotation block, have lost.
void lose(const RequantizedSums& sums, const LookupTable& table, RandomKey key, float weight, std::size_t from,
          std::size_t to, std::uint8_t* values, float* lost) {
  const std::size_t at = from - sums.first;
  key.first = sums.first;
  center(sums.exact, key, at, to - from, lost);
  lookup_sum(sums.codes + code_bytes(at, table.bits()), to - from, table, Accumulate::kWrite, values);
  for (std::size_t group = from; group < to;) {
    const std::size_t end = std::min(to, (group / kScaleGroup + 1) * kScaleGroup);
    std::uint16_t scale = 0;
    std::memcpy(&scale, sums.scales + (group - sums.first) / kScaleGroup, sizeof(scale));
    const ClampRange range(scale_value(scale), 1.0F, table.granularity());
    HWY_DYNAMIC_DISPATCH(subtract_values)
    (values + (group - from), end - group, range, weight, lost + (group - from));
    group = end;
  }
}

}  // namespace

void keep_loss(const RequantizedSums& sums, const LookupTable& table, const float* max_norms, float threshold,
               const BlockLayout& layout, const RandomKey& key, Floats residual) {
  thread_local Tile memory;
  const std::size_t tile = std::max(kTile, layout.rotation_block());
  const std::size_t end = sums.first + sums.exact.count;
  for (std::size_t first_block = 0, next = 0; first_block < layout.blocks(); first_block = next) {
    next = layout.block_within(first_block, tile);
    const std::size_t at = layout.offset(first_block);
    const BlockLayout part = layout.part(first_block, next);
    RandomKey part_key = key;
    part_key.first += at;
    if (part_key.first >= end || part_key.first + part.padded() <= sums.first) continue;
    memory.resize(part.padded());
    for (std::size_t b = 0; b < part.blocks(); ++b) {
      const std::size_t block = part_key.first + part.offset(b);
      const std::size_t from = std::max(block, sums.first);
      const std::size_t to = std::min(block + part.size(b), end);
      float max_norm = 0;
      std::memcpy(&max_norm, max_norms + first_block + b, sizeof(max_norm));
      const ClampRange range(max_norm, threshold, sums.granularity);
      if (from >= to || !range.finite) continue;
      const float weight = range.limit / static_cast<float>(sums.granularity);
      lose(sums, table, key, weight, from, to, memory.values.data(), memory.lost.data() + (from - part_key.first));
    }
    inverse_rotate(memory.lost.data(), part, part_key, {memory.rotated_back.data(), FloatFormat::kFp32});
    const Floats kept = residual + at;
    const bool in_place = kept.format == FloatFormat::kFp32;
    float* wide = in_place ? static_cast<float*>(kept.data) : memory.lost.data();
    if (!in_place) {
      to_fp32(kept, part.coordinates(), wide);
    }
    HWY_DYNAMIC_DISPATCH(add)(memory.rotated_back.data(), part.coordinates(), wide);
    if (!in_place) {
      from_fp32(wide, part.coordinates(), kept);
    }
  }
}

}  // namespace thc
#endif
