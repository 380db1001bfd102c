#include "thc/float_format.h"

namespace thc::naive {

void to_fp32(ConstFloats in, std::size_t count, float* out) noexcept {
  if (count == 0) {
    return;  // there may be no memory at all
  }
  if (in.format == FloatFormat::kFp32) {
    std::memcpy(out, in.data, count * sizeof(float));
    return;
  }
  const auto* from = static_cast<const std::uint8_t*>(in.data);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, from + i * sizeof(bits), sizeof(bits));
    const float value = in.format == FloatFormat::kFp16 ? fp16_to_fp32(bits) : bf16_to_fp32(bits);
    std::memcpy(out + i, &value, sizeof(value));
  }
}

void from_fp32(const float* in, std::size_t count, Floats out) noexcept {
  if (count == 0) {
    return;  // there may be no memory at all
  }
  if (out.format == FloatFormat::kFp32) {
    std::memcpy(out.data, in, count * sizeof(float));
    return;
  }
  auto* to = static_cast<std::uint8_t*>(out.data);
  for (std::size_t i = 0; i < count; ++i) {
    float value = 0;
    std::memcpy(&value, in + i, sizeof(value));
    const std::uint16_t bits = out.format == FloatFormat::kFp16 ? fp32_to_fp16(value) : fp32_to_bf16(value);
    std::memcpy(to + i * sizeof(bits), &bits, sizeof(bits));
  }
}

}  // namespace thc::naive
