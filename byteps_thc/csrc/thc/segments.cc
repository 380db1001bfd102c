#include "thc/segments.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "thc/lane_sums.h"

namespace thc {
namespace {

/// Coordinates that are converted to fp32 at a time: they stay in L1.
constexpr std::size_t kTile = 2048;
/// Fewest coordinates of a range. Waking a helper costs about as much as a hundred thousand coordinates take.
constexpr std::size_t kLeast = std::size_t{1} << 17;

/// A tile of in + addend as fp32.
class Tile {
 public:
  void load(ConstFloats in, ConstFloats addend, std::size_t count) noexcept {
    to_fp32(in, count, values_.data());
    if (addend.data != nullptr) {
      to_fp32(addend, count, added_.data());
      for (std::size_t i = 0; i < count; ++i) {
        values_[i] += added_[i];
      }
    }
  }

  float* values() noexcept { return values_.data(); }

 private:
  alignas(64) std::array<float, kTile> values_;
  alignas(64) std::array<float, kTile> added_;
};

/// Adds the squares of coordinates position .. position + count - 1 of a segment.
void add_squares(const float* x, std::size_t count, std::size_t position, Lanes<double>& lanes) noexcept {
  std::size_t i = 0;
  for (; i < count && (position + i) % kSumLanes != 0; ++i) {
    lanes[(position + i) % kSumLanes] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  for (; i + kSumLanes <= count; i += kSumLanes) {
    for (std::size_t lane = 0; lane < kSumLanes; ++lane) {
      lanes[lane] += static_cast<double>(x[i + lane]) * static_cast<double>(x[i + lane]);
    }
  }
  for (; i < count; ++i) {
    lanes[(position + i) % kSumLanes] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
}

void norms_of(ConstFloats gradient, ConstFloats residual, const Segments& segments, std::size_t first, std::size_t last,
              float* norms) {
  if (first == last) return;
  const std::size_t behind = segments.end(last - 1);
  Tile tile;
  std::size_t begin = 0;  // of the coordinates in the tile
  std::size_t end = 0;
  for (std::size_t i = first; i < last; ++i) {
    Lanes<double> lanes{};
    for (std::size_t done = 0; done < segments.sizes[i];) {
      const std::size_t at = segments.starts[i] + done;
      if (at < begin || at >= end) {
        begin = at;
        end = std::min(at + kTile, behind);
        tile.load(gradient + begin, residual + begin, end - begin);
      }
      const std::size_t count = std::min(segments.end(i), end) - at;
      add_squares(tile.values() + (at - begin), count, done, lanes);
      done += count;
    }
    const float norm = norm_of(lanes);
    std::memcpy(norms + i, &norm, sizeof(norm));
  }
}

/// Scales a tile of coordinates that begins at `first`; `segment`: the first one that ends behind it, moved on.
void scale_tile(float* x, std::size_t first, std::size_t count, const Segments& segments, const float* factors,
                std::size_t& segment) noexcept {
  const std::size_t end = first + count;
  for (; segment < segments.count() && segments.starts[segment] < end; ++segment) {
    float factor = 0;
    std::memcpy(&factor, factors + segment, sizeof(factor));
    const std::size_t from = std::max<std::size_t>(segments.starts[segment], first) - first;
    const std::size_t to = std::min(segments.end(segment), end) - first;
    for (std::size_t i = from; i < to; ++i) {
      x[i] = x[i] * factor + 0.0F;  // -0 becomes +0
    }
    if (segments.end(segment) > end) return;
  }
}

}  // namespace

std::size_t Segments::behind(std::size_t coordinate) const noexcept {
  const auto after = std::upper_bound(starts.begin(), starts.end(), coordinate);
  const auto i = static_cast<std::size_t>(after - starts.begin());
  return i > 0 && end(i - 1) > coordinate ? i - 1 : i;
}

void segment_norms(ThreadPool* pool, ConstFloats gradient, ConstFloats residual, const Segments& segments,
                   float* norms) {
  if (segments.count() == 0) return;
  const std::size_t count = segments.end(segments.count() - 1);
  const auto first_from = [&](std::size_t coordinate) {
    return static_cast<std::size_t>(std::ranges::lower_bound(segments.starts, coordinate) - segments.starts.begin());
  };
  const std::size_t empty = first_from(count);  // those at the end are in no range
  std::memset(norms + empty, 0, (segments.count() - empty) * sizeof(*norms));
  for_each_range(pool, count, 1, kLeast, [&](std::size_t begin, std::size_t size) {
    norms_of(gradient, residual, segments, first_from(begin), first_from(begin + size), norms);
  });
}

void scale_segments(ThreadPool* pool, ConstFloats in, ConstFloats addend, std::size_t count, const Segments& segments,
                    const float* factors, Floats out) {
  for_each_range(pool, count, kTile, kLeast, [&](std::size_t begin, std::size_t range) {
    Tile tile;
    std::size_t segment = segments.behind(begin);
    for (std::size_t first = begin; first < begin + range; first += kTile) {
      const std::size_t size = std::min(kTile, begin + range - first);
      tile.load(in + first, addend + first, size);
      scale_tile(tile.values(), first, size, segments, factors, segment);
      from_fp32(tile.values(), size, out + first);
    }
  });
}

}  // namespace thc
