#include <algorithm>
#include <cstring>
#include <vector>

#include "csrc/naive/kernels.h"
#include "thc/norm_sum.h"

namespace thc::naive {
namespace {

/// Gradient + residual of one block, padded with zeros.
std::vector<float> load_block(ConstFloats gradient, ConstFloats residual, const BlockLayout& layout, std::size_t i) {
  std::vector<float> block(layout.size(i), 0.0F);
  const std::size_t offset = layout.offset(i);
  const std::size_t used = std::min(layout.coordinates() - offset, block.size());
  naive::to_fp32(gradient + offset, used, block.data());
  std::vector<float> carried(used, 0.0F);
  if (residual.data != nullptr) {
    naive::to_fp32(residual + offset, used, carried.data());
    std::transform(carried.begin(), carried.end(), block.begin(), block.begin(),
                   [](float a, float b) { return b + a; });
  }
  return block;
}

float block_norm(const std::vector<float>& block) {
  NormLanes lanes{};
  for (std::size_t k = 0; k < block.size(); ++k) {
    lanes[k % kNormLanes] += static_cast<double>(block[k]) * static_cast<double>(block[k]);
  }
  return norm_of(lanes);
}

void flip_signs(std::vector<float>& block, std::size_t offset, const RandomKey& key) {
  for (std::size_t k = 0; k < block.size(); ++k) {
    block[k] = sign_is_negative(key, offset + k) ? -block[k] : block[k];
  }
}

}  // namespace

void hadamard(float* x, std::size_t size) noexcept {
  for (std::size_t half = 1; half < size; half *= 2) {
    for (std::size_t start = 0; start < size; start += 2 * half) {
      for (std::size_t k = start; k < start + half; ++k) {
        const float a = x[k];
        const float b = x[k + half];
        x[k] = a + b;
        x[k + half] = a - b;
      }
    }
  }
}

void block_norms(ConstFloats gradient, ConstFloats residual, const BlockLayout& layout, float* norms) {
  for (std::size_t i = 0; i < layout.blocks(); ++i) {
    const float norm = block_norm(load_block(gradient, residual, layout, i));
    std::memcpy(norms + i, &norm, sizeof(norm));
  }
}

void rotate(ConstFloats gradient, ConstFloats residual, const BlockLayout& layout, const RandomKey& key,
            float* rotated) {
  for (std::size_t i = 0; i < layout.blocks(); ++i) {
    std::vector<float> block = load_block(gradient, residual, layout, i);
    flip_signs(block, layout.offset(i), key);
    hadamard(block.data(), block.size());
    std::memcpy(rotated + layout.offset(i), block.data(), block.size() * sizeof(float));
  }
}

void inverse_rotate(float* rotated, const BlockLayout& layout, const RandomKey& key, Floats out) {
  for (std::size_t i = 0; i < layout.blocks(); ++i) {
    const std::size_t offset = layout.offset(i);
    std::vector<float> block(layout.size(i));
    std::memcpy(block.data(), rotated + offset, block.size() * sizeof(float));
    const float scale = 1.0F / static_cast<float>(block.size());
    std::transform(block.begin(), block.end(), block.begin(), [scale](float x) { return x * scale; });
    hadamard(block.data(), block.size());
    flip_signs(block, offset, key);
    const std::size_t used = std::min(layout.coordinates() - offset, block.size());
    naive::from_fp32(block.data(), used, out + offset);
  }
}

}  // namespace thc::naive
