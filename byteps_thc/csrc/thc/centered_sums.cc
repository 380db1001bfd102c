#include "thc/centered_sums.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thc/centered_sums.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "thc/known_sums-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thc {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;

/// Loads sums.
template <class Sum>
struct LoadFloats {
  const std::uint8_t* sums;
  HWY_INLINE VF operator()(std::size_t i) const {
    const hn::Rebind<Sum, DF> dsum;
    const auto sum = hn::LoadU(dsum, reinterpret_cast<const Sum*>(sums + i * sizeof(Sum)));
    return hn::ConvertTo(DF(), hn::PromoteTo(hn::RebindToSigned<DF>(), sum));
  }
};

template <class Sum>
HWY_INLINE void center_as(const ExactSums& exact, const RandomKey& key, std::size_t first, std::size_t count,
                          float* x) {
  const LoadFloats<Sum> load{static_cast<const std::uint8_t*>(exact.sums) + first * sizeof(Sum)};
  const auto most = hn::Set(DF(), static_cast<float>(exact.most));
  const auto store = [&](std::size_t i, VF sum) HWY_ATTR { hn::StoreU(hn::Sub(hn::Add(sum, sum), most), DF(), x + i); };
  if (exact.known == nullptr) {
    for (std::size_t i = 0; i < count; i += hn::Lanes(DF())) {
      store(i, load(i));
    }
    return;
  }
  KnownSums known(*exact.known, exact.workers, exact.domain, key, first);
  for (std::size_t group = 0; group < count; group += KnownSums::kGroup) {
    known.next([&](std::size_t i, VF error) HWY_ATTR { store(group + i, hn::Sub(load(group + i), error)); });
  }
}

HWY_ATTR void center(const ExactSums& exact, const RandomKey& key, std::size_t first, std::size_t count, float* x) {
  exact.value_bits == 8 ? center_as<std::uint8_t>(exact, key, first, count, x)
                        : center_as<std::uint16_t>(exact, key, first, count, x);
}

HWY_ATTR float largest_magnitude(const float* x, std::size_t count) {
  const DF d;
  auto largest = hn::Zero(d);
  for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
    largest = hn::Max(largest, hn::Abs(hn::LoadU(d, x + i)));
  }
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

}  // namespace HWY_NAMESPACE
}  // namespace thc
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thc {

HWY_EXPORT(center);
HWY_EXPORT(largest_magnitude);

void center(const ExactSums& exact, const RandomKey& key, std::size_t first, std::size_t count, float* x) {
  HWY_DYNAMIC_DISPATCH(center)(exact, key, first, count, x);
}

float largest_magnitude(const float* x, std::size_t count) noexcept {
  return HWY_DYNAMIC_DISPATCH(largest_magnitude)(x, count);
}

}  // namespace thc
#endif
