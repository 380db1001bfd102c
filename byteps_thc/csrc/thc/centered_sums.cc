#include "thc/centered_sums.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thc/centered_sums.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace thc {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DI = hn::ScalableTag<std::int32_t>;

template <class Sum>
HWY_INLINE float center_as(const std::uint8_t* sums, std::size_t count, std::uint32_t most, float* x) {
  const DI di;
  const hn::Rebind<Sum, DI> dsum;
  const auto zero = hn::Set(di, static_cast<std::int32_t>(most));
  auto largest = hn::Zero(di);
  for (std::size_t j = 0; j < count; j += hn::Lanes(di)) {
    const auto sum = hn::PromoteTo(di, hn::LoadU(dsum, reinterpret_cast<const Sum*>(sums + j * sizeof(Sum))));
    const auto centered = hn::Sub(hn::ShiftLeft<1>(sum), zero);
    largest = hn::Max(largest, hn::Abs(centered));
    hn::StoreU(hn::ConvertTo(DF(), centered), DF(), x + j);
  }
  return static_cast<float>(hn::GetLane(hn::MaxOfLanes(di, largest)));
}

HWY_ATTR float center(const ExactSums& exact, std::size_t first, std::size_t count, float* x) {
  const auto* sums = static_cast<const std::uint8_t*>(exact.sums) + first * exact.value_bits / 8;
  return exact.value_bits == 8 ? center_as<std::uint8_t>(sums, count, exact.most, x)
                               : center_as<std::uint16_t>(sums, count, exact.most, x);
}

}  // namespace HWY_NAMESPACE
}  // namespace thc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thc {

HWY_EXPORT(center);

float center(const ExactSums& exact, std::size_t first, std::size_t count, float* x) noexcept {
  return HWY_DYNAMIC_DISPATCH(center)(exact, first, count, x);
}

}  // namespace thc
#endif
