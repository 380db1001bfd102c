#include <cstring>
#include <vector>

#include "csrc/naive/kernels.h"
#include "thc/affine_map.h"

namespace thc::naive {
namespace {

float sum_at(const Aggregate& aggregate, std::size_t j) {
  if (aggregate.value_bits == 8) {
    return static_cast<const std::uint8_t*>(aggregate.sums)[j];
  }
  std::uint16_t sum = 0;
  std::memcpy(&sum, static_cast<const std::uint8_t*>(aggregate.sums) + 2 * j, sizeof(sum));
  return sum;
}

unsigned contributions_at(const Aggregate& aggregate, std::size_t j) {
  return aggregate.contributions[(aggregate.first + j) / aggregate.codes_per_chunk];
}

/// Dequantized block times `factor`.
std::vector<float> dequantize_block(const Aggregate& aggregate, const BlockLayout& layout, std::size_t b,
                                    float factor) {
  const ClampRange range = block_range(aggregate, b);
  std::vector<float> block(layout.size(b));
  for (std::size_t k = 0; k < block.size(); ++k) {
    const std::size_t j = layout.offset(b) + k;
    const AffineMap map = affine_map(range, contributions_at(aggregate, j), factor);
    block[k] = sum_at(aggregate, j) * map.slope - map.shift;
  }
  return block;
}

/// Average of the block before its signs are restored.
std::vector<float> inverse_hadamard(const Aggregate& aggregate, const BlockLayout& layout, std::size_t b) {
  const ClampRange range = block_range(aggregate, b);
  const std::size_t offset = layout.offset(b);
  const std::size_t size = layout.size(b);
  const float factor = 1.0F / static_cast<float>(size);
  if (!decodes_exactly(aggregate, range, offset, size)) {
    std::vector<float> block = dequantize_block(aggregate, layout, b, factor);
    hadamard(block.data(), size);
    return block;
  }
  std::vector<float> block(size);
  for (std::size_t k = 0; k < size; ++k) {
    block[k] = sum_at(aggregate, offset + k);
  }
  hadamard(block.data(), size);
  const AffineMap map = affine_map(range, contributions_at(aggregate, offset), factor);
  for (float& value : block) {
    value *= map.slope;
  }
  block[0] -= range.limit;
  return block;
}

}  // namespace

void dequantize(const Aggregate& aggregate, const BlockLayout& layout, float* rotated) {
  for (std::size_t b = 0; b < layout.blocks(); ++b) {
    const std::vector<float> block = dequantize_block(aggregate, layout, b, 1.0F);
    std::memcpy(rotated + layout.offset(b), block.data(), block.size() * sizeof(float));
  }
}

void decode(const Aggregate& aggregate, const BlockLayout& layout, const RandomKey& key, Floats out) {
  for (std::size_t b = 0; b < layout.blocks(); ++b) {
    const std::size_t offset = layout.offset(b);
    std::vector<float> block = inverse_hadamard(aggregate, layout, b);
    for (std::size_t k = 0; k < block.size(); ++k) {
      block[k] = sign_is_negative(key, offset + k) ? -block[k] : block[k];
    }
    naive::from_fp32(block.data(), std::min(block.size(), layout.coordinates() - offset), out + offset);
  }
}

}  // namespace thc::naive
