// Runs a kernel with every instruction set of the machine.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/use_instruction_set.h"
#include "thc/block_layout.h"
#include "thc/lookup_table.h"
#include "thc/philox.h"

namespace thc::testing {

inline constexpr RandomKey kKey{0x0123456789abcdefULL, 7, 42};
inline constexpr std::size_t kSizes[] = {0, 1, 63, 64, 65, 1000, 8191, 8192, 8193, 21000};

/// Elements at a byte address that is off by `misalignment`, with guard bytes behind them.
template <typename T>
class Misaligned {
 public:
  Misaligned(std::size_t count, std::size_t misalignment)
      : bytes_(misalignment + count * sizeof(T) + kGuard, 0xa5), misalignment_(misalignment), count_(count) {}
  Misaligned(const std::vector<T>& values, std::size_t misalignment) : Misaligned(values.size(), misalignment) {
    if (count_ > 0) std::memcpy(bytes_.data() + misalignment_, values.data(), count_ * sizeof(T));
  }
  T* data() { return reinterpret_cast<T*>(bytes_.data() + misalignment_); }
  /// A copy of the elements; fails the test if the kernel wrote behind them.
  std::vector<T> values() const {
    for (std::size_t i = bytes_.size() - kGuard; i < bytes_.size(); ++i) {
      EXPECT_EQ(bytes_[i], 0xa5) << "written behind the end";
    }
    std::vector<T> copy(count_);
    if (count_ > 0) std::memcpy(copy.data(), bytes_.data() + misalignment_, count_ * sizeof(T));
    return copy;
  }

 private:
  static constexpr std::size_t kGuard = 64;
  std::vector<std::uint8_t> bytes_;
  std::size_t misalignment_;
  std::size_t count_;
};

/// Bits of floats: equality that tells -0 from 0 and holds for NaN.
inline std::vector<std::uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits(values.size());
  if (!values.empty()) std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
  return bits;
}

inline std::vector<float> normal_floats(std::size_t count, std::uint32_t seed = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

inline std::vector<std::uint8_t> random_bytes(std::size_t count, std::uint32_t seed = 2) {
  std::mt19937 generator(seed);
  std::vector<std::uint8_t> values(count);
  for (std::uint8_t& value : values) value = static_cast<std::uint8_t>(generator());
  return values;
}

inline LookupTable identity_table(unsigned bits) {
  std::vector<std::uint16_t> values(std::size_t{1} << bits);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint16_t>(i);
  return {bits, values};
}

/// A table that uses the codes up to `granularity` alone.
inline LookupTable short_table(unsigned bits, std::uint16_t granularity) {
  std::vector<std::uint16_t> values(std::size_t{1} << bits);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<std::uint16_t>(std::min<std::size_t>(i, granularity));
  }
  return {bits, values};
}

/// Uneven gaps of 1, 2 and 3 times `stretch`.
inline LookupTable uneven_table(unsigned bits, unsigned stretch = 1) {
  std::vector<std::uint16_t> values(std::size_t{1} << bits, 0);
  for (std::size_t i = 1; i < values.size(); ++i) {
    values[i] = static_cast<std::uint16_t>(values[i - 1] + (1 + i % 3) * stretch);
  }
  return {bits, values};
}

/// Test parameter: an instruction set; the best one is selected again afterwards.
class EveryInstructionSet : public ::testing::TestWithParam<std::string> {
 protected:
  /// The machine's simplest instruction set and the one under test give the same bits. tests/reference has the right.
  template <typename Result>
  void expect_same(const std::function<Result()>& run) {
    use_instruction_set(std::nullopt);
    use_instruction_set(instruction_sets().back());
    const Result expected = run();
    use_instruction_set(GetParam());
    EXPECT_EQ(run(), expected);
  }
  void TearDown() override { use_instruction_set(std::nullopt); }
};

#define THC_INSTANTIATE_EVERY_INSTRUCTION_SET(suite)                                   \
  INSTANTIATE_TEST_SUITE_P(All, suite, ::testing::ValuesIn(::thc::instruction_sets()), \
                           [](const ::testing::TestParamInfo<std::string>& set) { return set.param; })

}  // namespace thc::testing
