// Gradients come as fp32, fp16 or bf16; kernels compute in fp32.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace thc {

enum class FloatFormat : std::uint8_t { kFp32, kFp16, kBf16 };

constexpr std::size_t float_bytes(FloatFormat format) noexcept { return format == FloatFormat::kFp32 ? 4 : 2; }

/// Floats of some format, any alignment; {} for none, which stay none.
struct ConstFloats {
  const void* data = nullptr;
  FloatFormat format = FloatFormat::kFp32;
  ConstFloats operator+(std::size_t i) const noexcept {
    return {data == nullptr ? nullptr : static_cast<const std::uint8_t*>(data) + i * float_bytes(format), format};
  }
};
struct Floats {
  void* data = nullptr;
  FloatFormat format = FloatFormat::kFp32;
  Floats operator+(std::size_t i) const noexcept {
    return {data == nullptr ? nullptr : static_cast<std::uint8_t*>(data) + i * float_bytes(format), format};
  }
  operator ConstFloats() const noexcept { return {data, format}; }  // NOLINT(google-explicit-constructor)
};

/// out[i] = float(in[i]), exact.
void to_fp32(ConstFloats in, std::size_t count, float* out) noexcept;
/// out[i] = in[i], rounded to nearest even; NaN and infinity stay. Finite numbers beyond fp16 become its largest one:
/// averages of fp16 gradients fit, and only errors of codes exceed it.
void from_fp32(const float* in, std::size_t count, Floats out) noexcept;

/// Scalar code: for the floats that are left over by vectors.
namespace naive {

inline float fp16_to_fp32(std::uint16_t half) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fU;
  const std::uint32_t mantissa = half & 0x3ffU;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24 is exact in fp32
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(static_cast<float>(mantissa) * 0x1p-24F) | sign);
  }
  const std::uint32_t wide = exponent == 0x1f ? 0xffU : exponent + 112U;
  return std::bit_cast<float>(sign | (wide << 23) | (mantissa << 13));
}

inline std::uint16_t fp32_to_fp16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) {
    return static_cast<std::uint16_t>(sign | 0x7e00U);
  }
  if (magnitude >= 0x477ff000U) {  // 65520: halfway to the first value that does not fit
    return static_cast<std::uint16_t>(sign | (magnitude == 0x7f800000U ? 0x7c00U : 0x7bffU));
  }
  if (magnitude < 0x38800000U) {  // below 2^-14: adding 0.5 rounds to multiples of 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U));
  }
  const std::uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
  return static_cast<std::uint16_t>(sign | ((rounded - (112U << 23)) >> 13));
}

inline float bf16_to_fp32(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline std::uint16_t fp32_to_bf16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) {
    return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  }
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

void to_fp32(ConstFloats in, std::size_t count, float* out) noexcept;
void from_fp32(const float* in, std::size_t count, Floats out) noexcept;

}  // namespace naive
}  // namespace thc
