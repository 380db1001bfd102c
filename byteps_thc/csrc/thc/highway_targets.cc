// The few functions of Highway that its headers leave to libhwy: which instruction sets this processor has, and which
// one the kernels use. Here, so that nothing of Highway is needed at run time.
#include <hwy/targets.h>

#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "hwy/highway.h"

#if HWY_ARCH_X86
#include <cpuid.h>
#endif

namespace {

#if HWY_ARCH_X86

struct Registers {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(unsigned leaf) noexcept {
  Registers r;
  __get_cpuid_count(leaf, 0, &r.eax, &r.ebx, &r.ecx, &r.edx);  // zeros for a leaf that the processor does not have
  return r;
}

/// Which registers the operating system saves: XCR0.
std::uint64_t saved_state() noexcept {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (std::uint64_t{high} << 32) | low;
}

constexpr bool has(unsigned value, unsigned bits) noexcept { return (value & bits) == bits; }

/// The features are those that Highway compiles its targets with (hwy/ops/set_macros-inl.h) and their companions.
std::int64_t machine_targets() noexcept {
  const Registers basic = cpuid(1);
  const Registers extended = cpuid(7);
  const Registers amd = cpuid(0x80000001);
  std::int64_t targets = 0;
  const bool ssse3 = has(basic.ecx, bit_SSE3 | bit_SSSE3) && has(basic.edx, bit_SSE | bit_SSE2);
  targets |= ssse3 ? HWY_SSSE3 : 0;
  const bool sse4 = ssse3 && has(basic.ecx, bit_SSE4_1 | bit_SSE4_2);
  targets |= sse4 ? HWY_SSE4 : 0;
  constexpr std::uint64_t kAvxState = 0x06;     // XMM, YMM
  constexpr std::uint64_t kAvx512State = 0xe6;  // and masks, ZMM
  const std::uint64_t state = has(basic.ecx, bit_OSXSAVE) ? saved_state() : 0;
  const bool avx2 = sse4 && (state & kAvxState) == kAvxState && has(basic.ecx, bit_AVX | bit_FMA | bit_F16C) &&
                    has(extended.ebx, bit_AVX2 | bit_BMI | bit_BMI2) && has(amd.ecx, bit_LZCNT);
  targets |= avx2 ? HWY_AVX2 : 0;
  const bool avx3 = avx2 && (state & kAvx512State) == kAvx512State &&
                    has(extended.ebx, bit_AVX512F | bit_AVX512VL | bit_AVX512DQ | bit_AVX512BW | bit_AVX512CD);
  targets |= avx3 ? HWY_AVX3 : 0;
  const bool avx3_dl = avx3 && has(extended.ecx, bit_AVX512VNNI | bit_VPCLMULQDQ | bit_AVX512VBMI | bit_AVX512VBMI2 |
                                                     bit_VAES | bit_AVX512VPOPCNTDQ | bit_AVX512BITALG | bit_GFNI);
  targets |= avx3_dl ? HWY_AVX3_DL : 0;
  return targets;
}

#else

/// What the compiler may use anyway.
std::int64_t machine_targets() noexcept { return HWY_ENABLED_BASELINE; }

#endif

std::atomic<std::int64_t> wanted_targets{0};

}  // namespace

namespace hwy {

std::int64_t SupportedTargets() {
  static const std::int64_t machine = machine_targets();
  const std::int64_t wanted = wanted_targets.load();
  const std::int64_t targets = wanted != 0 ? wanted : machine;
  return targets != 0 ? targets : HWY_STATIC_TARGET;
}

void SetSupportedTargetsForTest(std::int64_t targets) { wanted_targets.store(targets); }

ChosenTarget& GetChosenTarget() {
  static ChosenTarget chosen;
  return chosen;
}

/// Assertions of Highway's headers, in builds with sanitizers.
void Abort(const char* file, int line, const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  std::fprintf(stderr, "%s:%d: ", file, line);
  std::vfprintf(stderr, format, arguments);
  std::fputc('\n', stderr);
  va_end(arguments);
  std::abort();
}

}  // namespace hwy
