#include "thc/nearest.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "csrc/naive/kernels.h"
#include "thc/bit_stream.h"
#include "thc/nearest_scale.h"
#include "thc/norm_sum.h"

namespace thc::naive {
namespace {

std::uint32_t domain_of(Hop hop) { return hop == Hop::kUp ? kSignDomain : kDownSignDomain; }

void flip_signs(std::vector<float>& x, const RotationBlock& block, const RandomKey& key, Hop hop) {
  for (std::size_t k = 0; k < x.size(); ++k) {
    x[k] = sign_is_negative(key, block.offset + k, domain_of(hop)) ? -x[k] : x[k];
  }
}

/// <x, y>, sizes being powers of two.
float dot(const std::vector<float>& x, const std::vector<float>& y) {
  std::vector<float> sums(x.size());
  for (std::size_t k = 0; k < x.size(); ++k) {
    sums[k] = x[k] * y[k];
  }
  for (std::size_t vectors = x.size() / kDotLanes; vectors > 1; vectors /= 2) {
    for (std::size_t k = 0; k < vectors / 2 * kDotLanes; ++k) {
      const std::size_t first = k / kDotLanes * 2 * kDotLanes + k % kDotLanes;
      sums[k] = sums[first] + sums[first + kDotLanes];
    }
  }
  DotLanes lanes;
  std::copy_n(sums.begin(), kDotLanes, lanes.begin());
  return dot_of(lanes);
}

float norm_of_block(const std::vector<float>& x) {
  const float squares = dot(x, x);
  if (squares_fit(squares)) {
    return std::sqrt(squares);
  }
  NormLanes lanes{};
  for (std::size_t k = 0; k < x.size(); ++k) {
    lanes[k % kNormLanes] += static_cast<double>(x[k]) * static_cast<double>(x[k]);
  }
  return norm_of(lanes);
}

/// The cell of z by its edges, which are found in those of the binary search.
unsigned code_of(const NearestPoints& points, float z) {
  unsigned code = 0;
  for (unsigned level = 0; level < points.bits(); ++level) {
    code = 2 * code + (z >= points.level(level)[code] ? 1 : 0);
  }
  return code;
}

/// Returns the scale; x: size floats, padded.
float encode_block(std::vector<float> x, const RotationBlock& block, const RandomKey& key, Hop hop,
                   const NearestPoints& points, std::uint8_t* packed) {
  std::vector<std::uint8_t> codes(x.size(), 0);
  std::vector<float> found(x.size(), 0.0F);
  const float norm = norm_of_block(x);
  if (kind_of(norm) == BlockKind::kFinite) {
    flip_signs(x, block, key, hop);
    hadamard(x.data(), x.size());
    const float inverse = 1.0F / norm;
    for (std::size_t k = 0; k < x.size(); ++k) {
      x[k] *= inverse;
      codes[k] = static_cast<std::uint8_t>(code_of(points, x[k]));
      found[k] = points.points()[codes[k]];
    }
  }
  naive::pack(codes.data(), codes.size(), points.bits(), packed);
  switch (kind_of(norm)) {
    case BlockKind::kZero:
      return 0;
    case BlockKind::kFinite:
      return scale_of(norm, dot(x, found), x.size());
    default:
      return kNoScale;
  }
}

float scale_at(const float* scales, std::size_t b) {
  float scale = 0;
  std::memcpy(&scale, scales + b, sizeof(scale));
  return scale;
}

/// The average of a block, padding included; none where it is zero or no number.
BlockKind average_block(std::span<const NearestCodes> ranks, unsigned bits, std::size_t b, std::size_t offset,
                        const RotationBlock& block, const RandomKey& key, Hop hop, std::vector<float>& x) {
  BlockKind kind = BlockKind::kZero;
  for (const NearestCodes& rank : ranks) {
    const float scale = scale_at(rank.scales, b);
    if (std::isnan(scale)) return BlockKind::kNotFinite;
    if (scale != 0) kind = BlockKind::kFinite;
  }
  if (kind == BlockKind::kZero) return kind;
  x.assign(block.size, 0.0F);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const float factor = factor_of(scale_at(ranks[r].scales, b), ranks.size(), block.size);
    for (std::size_t k = 0; k < x.size(); ++k) {
      const float value = ranks[r].points[read_code(ranks[r].codes, offset + k, bits)] * factor;
      x[k] = r == 0 ? value : x[k] + value;
    }
  }
  hadamard(x.data(), x.size());
  flip_signs(x, block, key, hop);
  return kind;
}

}  // namespace

void encode_nearest(ConstFloats gradient, Blocks blocks, const RandomKey& key, Hop hop, const NearestPoints& points,
                    std::uint8_t* codes, float* scales) {
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const RotationBlock& block = blocks[b];
    std::vector<float> x(block.size, 0.0F);
    naive::to_fp32(gradient + (block.coordinate - blocks[0].coordinate), block.used, x.data());
    std::uint8_t* packed = codes + code_bytes(block.offset - blocks[0].offset, points.bits());
    const float scale = encode_block(x, block, key, hop, points, packed);
    std::memcpy(scales + b, &scale, sizeof(scale));
  }
}

void decode_nearest(std::span<const NearestCodes> ranks, unsigned bits, Blocks blocks, const RandomKey& key, Hop hop,
                    Floats out) {
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const RotationBlock& block = blocks[b];
    std::vector<float> x;
    const BlockKind kind = average_block(ranks, bits, b, block.offset - blocks[0].offset, block, key, hop, x);
    if (kind != BlockKind::kFinite) {
      x.assign(block.used, kind == BlockKind::kZero ? 0.0F : kNoScale);
    }
    naive::from_fp32(x.data(), block.used, out + (block.coordinate - blocks[0].coordinate));
  }
}

void recode_nearest(std::span<const NearestCodes> ranks, unsigned bits, Blocks blocks, const RandomKey& key,
                    const NearestPoints& down, std::uint8_t* codes, float* scales) {
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const RotationBlock& block = blocks[b];
    const std::size_t offset = block.offset - blocks[0].offset;
    std::vector<float> x;
    const BlockKind kind = average_block(ranks, bits, b, offset, block, key, Hop::kUp, x);
    x.resize(block.used, kind == BlockKind::kZero ? 0.0F : kNoScale);
    x.resize(block.size, 0.0F);
    const float scale = encode_block(x, block, key, Hop::kDown, down, codes + code_bytes(offset, down.bits()));
    std::memcpy(scales + b, &scale, sizeof(scale));
  }
}

}  // namespace thc::naive
