// Scalar twins of the vector kernels, a loop each, beside which those are tested: the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "thc/decode.h"
#include "thc/nearest.h"
#include "thc/pack.h"
#include "thc/quantization.h"
#include "thc/rotation.h"

namespace thc::naive {

void pack(const std::uint8_t* codes, std::size_t count, unsigned bits, std::uint8_t* packed) noexcept;
void unpack(const std::uint8_t* packed, std::size_t count, unsigned bits, std::uint8_t* codes) noexcept;

void block_norms(ConstFloats gradient, ConstFloats residual, const BlockLayout& layout, float* norms);
void rotate(ConstFloats gradient, ConstFloats residual, const BlockLayout& layout, const RandomKey& key,
            float* rotated);
void inverse_rotate(float* rotated, const BlockLayout& layout, const RandomKey& key, Floats out);
/// x[size] = H x, in place.
void hadamard(float* x, std::size_t size) noexcept;

std::size_t quantize(float* rotated, const float* max_norms, const BlockLayout& layout, const LookupTable& table,
                     const QuantizeOptions& options, std::uint8_t* codes);

void encode_nearest(ConstFloats gradient, Blocks blocks, const RandomKey& key, Hop hop, const NearestPoints& points,
                    std::uint8_t* codes, float* scales);
void decode_nearest(std::span<const NearestCodes> ranks, unsigned bits, Blocks blocks, const RandomKey& key, Hop hop,
                    Floats out);
void recode_nearest(std::span<const NearestCodes> ranks, unsigned bits, Blocks blocks, const RandomKey& key,
                    const NearestPoints& down, std::uint8_t* codes, float* scales);

/// rotated[layout.padded()] = sum / contributions * step - limit, see ClampRange; 0 where a chunk has no contributions,
/// NaN where the max norm is not finite.
void dequantize(const Aggregate& aggregate, const BlockLayout& layout, float* rotated);
void decode(const Aggregate& aggregate, const BlockLayout& layout, const RandomKey& key, Floats out);

}  // namespace thc::naive
