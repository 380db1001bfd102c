#include "thc/encode.h"

#include <cmath>
#include <tuple>

#include "csrc/kernel_fixture.h"
#include "thc/pack.h"
#include "thc/rotation.h"

namespace thc::testing {
namespace {

/// Codes, bits of the residual and number of clamped coordinates.
using Encoded = std::tuple<std::vector<std::uint8_t>, std::vector<std::uint32_t>, std::size_t>;

/// Arguments of a kernel; `residual` is copied, because it is overwritten.
struct Input {
  ConstFloats gradient;
  std::vector<float> residual;
  std::vector<float> max_norms;
  BlockLayout layout;
  LookupTable table;
  bool keep_error;
  std::size_t misalignment = 0;

  QuantizeOptions options() const { return {2.0F, kKey, {4, 0xc000}, keep_error}; }
};

Encoded run_encode(const Input& input) {
  Misaligned<float> residual(input.residual, input.misalignment);
  Misaligned<float> norms(input.max_norms, input.misalignment);
  Misaligned<std::uint8_t> codes(code_bytes(input.layout.padded(), input.table.bits()), input.misalignment);
  const std::size_t clamped = encode(nullptr, input.gradient, residual.data(), norms.data(), input.layout, input.table,
                                     input.options(), codes.data());
  return {codes.values(), bits_of(residual.values()), clamped};
}

/// The kernels that encode() is said to equal, one after the other over the whole partition.
Encoded run_stages(const Input& input) {
  std::vector<float> residual = input.residual;
  std::vector<float> rotated(input.layout.padded());
  std::vector<std::uint8_t> codes(code_bytes(input.layout.padded(), input.table.bits()));
  rotate(input.gradient, residual.data(), input.layout, kKey, rotated.data());
  const std::size_t clamped =
      quantize(rotated.data(), input.max_norms.data(), input.layout, input.table, input.options(), codes.data());
  if (input.keep_error) inverse_rotate(rotated.data(), input.layout, kKey, residual.data());
  return {codes, bits_of(residual), clamped};
}

class Encode : public EveryInstructionSet {
 protected:
  void expect_like_the_stages(const Input& input) {
    use_instruction_set(GetParam());
    EXPECT_EQ(run_encode(input), run_stages(input));
  }
};
THC_INSTANTIATE_EVERY_INSTRUCTION_SET(Encode);

/// Norms that clamp some coordinates.
std::vector<float> norms_of(const BlockLayout& layout) {
  std::vector<float> norms(layout.blocks());
  for (std::size_t b = 0; b < norms.size(); ++b) norms[b] = 0.5F * std::sqrt(static_cast<float>(layout.size(b)));
  return norms;
}

TEST_P(Encode, EqualsTheStages) {
  // Blocks smaller than a tile, as large, and larger; sizes with none, one and several tiles, and with padding.
  const std::vector<std::size_t> sizes = {0, 1, 63, 64, 1000, 32767, 32768, 32769, 70000, 200001};
  for (const unsigned bits : {1U, 3U, 4U, 8U}) {
    for (const std::size_t block : {std::size_t{64}, kDefaultRotationBlock, std::size_t{65536}}) {
      for (const std::size_t size : sizes) {
        SCOPED_TRACE(std::to_string(bits) + " bits, block " + std::to_string(block) + ", size " + std::to_string(size));
        const std::vector<float> gradient = normal_floats(size);
        const BlockLayout layout(size, block);
        expect_like_the_stages({{gradient.data(), FloatFormat::kFp32},
                                normal_floats(size, 3),
                                norms_of(layout),
                                layout,
                                uneven_table(bits),
                                size % 2 == 0,
                                size % 5});
      }
    }
  }
}

TEST_P(Encode, EqualsTheStagesWhereBlocksEnd) {
  // Ends within tiles of 32768 and at the ends of tiles, and tiles that are shorter because of an end.
  const std::vector<std::size_t> ends = {128, 1280, 9600, 32768, 32896, 70016, 100096};
  for (const std::size_t block : {std::size_t{64}, kDefaultRotationBlock, std::size_t{65536}}) {
    for (const std::size_t size : {100097UL, 200001UL}) {
      SCOPED_TRACE("block " + std::to_string(block) + ", size " + std::to_string(size));
      const std::vector<float> gradient = normal_floats(size);
      const BlockLayout layout(size, block, ends);
      const ConstFloats floats{gradient.data(), FloatFormat::kFp32};
      expect_like_the_stages({floats, normal_floats(size, 3), norms_of(layout), layout, uneven_table(4), true});
    }
  }
}

TEST_P(Encode, EqualsTheStagesForEveryFormat) {
  constexpr std::size_t kSize = 40001;
  const std::vector<float> values = normal_floats(kSize);
  const BlockLayout layout(kSize, kDefaultRotationBlock);
  for (const FloatFormat format : {FloatFormat::kFp32, FloatFormat::kFp16, FloatFormat::kBf16}) {
    Misaligned<std::uint8_t> gradient(kSize * float_bytes(format), 1);
    from_fp32(values.data(), kSize, {gradient.data(), format});
    expect_like_the_stages(
        {{gradient.data(), format}, normal_floats(kSize, 3), norms_of(layout), layout, uneven_table(4), true, 1});
  }
}

}  // namespace
}  // namespace thc::testing
