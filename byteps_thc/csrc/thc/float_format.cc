#include "thc/float_format.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thc/float_format.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace thc {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

[[maybe_unused]] constexpr float kLargestFp16 = 65504;

// 16-bit floats are converted in vectors where the machine has the instruction (F16C) or the conversion is a shift.
#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86
#define THC_VECTOR_FP16 1
#else
#define THC_VECTOR_FP16 0
#endif

HWY_ATTR std::size_t fp16_vectors_to_fp32(const std::uint8_t* in, std::size_t count, float* out) {
  std::size_t i = 0;
#if THC_VECTOR_FP16
  const hn::ScalableTag<float> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> d16;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const auto half = hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(in + 2 * i));
    hn::StoreU(hn::PromoteTo(d, half), d, out + i);
  }
#else
  (void)in, (void)count, (void)out;
#endif
  return i;
}

HWY_ATTR std::size_t fp32_to_fp16_vectors(const float* in, std::size_t count, std::uint8_t* out) {
  std::size_t i = 0;
#if THC_VECTOR_FP16
  const hn::ScalableTag<float> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> d16;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const auto wide = hn::LoadU(d, in + i);
    const auto within = hn::Min(hn::Max(wide, hn::Set(d, -kLargestFp16)), hn::Set(d, kLargestFp16));
    const auto finite = hn::Lt(hn::Abs(wide), hn::Inf(d));  // not of NaN
    const auto narrow = hn::DemoteTo(d16, hn::IfThenElse(finite, within, wide));
    hn::StoreU(narrow, d16, reinterpret_cast<hwy::float16_t*>(out + 2 * i));
  }
#else
  (void)in, (void)count, (void)out;
#endif
  return i;
}
#undef THC_VECTOR_FP16

HWY_ATTR std::size_t bf16_vectors_to_fp32(const std::uint8_t* in, std::size_t count, float* out) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> d32;
  const hn::Rebind<std::uint16_t, decltype(d)> d16;
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const auto half = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(in + 2 * i));
    hn::StoreU(hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, half))), d, out + i);
  }
  return i;
}

HWY_ATTR std::size_t fp32_to_bf16_vectors(const float* in, std::size_t count, std::uint8_t* out) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> d32;
  const hn::Rebind<std::uint16_t, decltype(d)> d16;
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const auto wide = hn::LoadU(d, in + i);
    const auto bits = hn::BitCast(d32, wide);
    const auto upper = hn::ShiftRight<16>(bits);
    const auto to_even = hn::Add(hn::Set(d32, 0x7fff), hn::And(upper, hn::Set(d32, 1)));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, to_even));
    const auto is_nan = hn::RebindMask(d32, hn::IsNaN(wide));
    const auto result = hn::IfThenElse(is_nan, hn::Or(upper, hn::Set(d32, 0x40)), rounded);
    hn::StoreU(hn::TruncateTo(d16, result), d16, reinterpret_cast<std::uint16_t*>(out + 2 * i));
  }
  return i;
}

HWY_ATTR void to_fp32(ConstFloats in, std::size_t count, float* out) {
  const auto* bytes = static_cast<const std::uint8_t*>(in.data);
  const std::size_t done = in.format == FloatFormat::kFp16   ? fp16_vectors_to_fp32(bytes, count, out)
                           : in.format == FloatFormat::kBf16 ? bf16_vectors_to_fp32(bytes, count, out)
                                                             : 0;
  naive::to_fp32(in + done, count - done, out + done);
}

HWY_ATTR void from_fp32(const float* in, std::size_t count, Floats out) {
  auto* bytes = static_cast<std::uint8_t*>(out.data);
  const std::size_t done = out.format == FloatFormat::kFp16   ? fp32_to_fp16_vectors(in, count, bytes)
                           : out.format == FloatFormat::kBf16 ? fp32_to_bf16_vectors(in, count, bytes)
                                                              : 0;
  naive::from_fp32(in + done, count - done, out + done);
}

}  // namespace HWY_NAMESPACE
}  // namespace thc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thc {
namespace naive {

void to_fp32(ConstFloats in, std::size_t count, float* out) noexcept {
  if (count == 0 || in.data == nullptr) {
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
  if (count == 0 || out.data == nullptr) {
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

}  // namespace naive

HWY_EXPORT(to_fp32);
HWY_EXPORT(from_fp32);

void to_fp32(ConstFloats in, std::size_t count, float* out) noexcept { HWY_DYNAMIC_DISPATCH(to_fp32)(in, count, out); }

void from_fp32(const float* in, std::size_t count, Floats out) noexcept {
  HWY_DYNAMIC_DISPATCH(from_fp32)(in, count, out);
}

}  // namespace thc
#endif
