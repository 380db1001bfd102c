#include "thc/requantize.h"

#include <bit>
#include <limits>
#include <tuple>

#include "csrc/naive/twins.h"
#include "thc/bit_stream.h"

namespace thc::testing {
namespace {

class Requantize : public BesideNaiveTwin {};
THC_INSTANTIATE_EVERY_INSTRUCTION_SET(Requantize);

/// Lines that no worker would make, so that every piece shows.
KnownError some_known_error() {
  KnownError known{};
  for (std::size_t piece = 0; piece < KnownError::kPieces; ++piece) {
    known.offset[piece] = 0.3F * static_cast<float>(piece) - 2.1F;
    known.slope[piece] = 1e-5F * static_cast<float>(piece * piece);
  }
  return known;
}

/// Codes and scales.
using Requantized = std::tuple<std::vector<std::uint8_t>, std::vector<std::uint16_t>>;

template <class Sum>
Requantized run_requantize(const Kernels& kernels, const std::vector<Sum>& sums, std::uint32_t most,
                           const LookupTable& table, std::size_t first, std::size_t misalignment = 0,
                           const KnownError* known = nullptr) {
  Misaligned<Sum> in(sums, misalignment);
  Misaligned<std::uint8_t> codes(code_bytes(sums.size(), table.bits()), misalignment);
  Misaligned<std::uint16_t> scales(scale_groups(sums.size()), misalignment);
  RandomKey key = kKey;
  key.first = first;
  kernels.requantize(ExactSums{in.data(), 8 * sizeof(Sum), sums.size(), most, known, 3, 2}, table, key, codes.data(),
                     scales.data());
  return {codes.values(), scales.values()};
}

/// Sums from 0 to `most`; most of them near the middle.
template <class Sum>
std::vector<Sum> random_sums(std::size_t count, std::uint32_t most) {
  const std::vector<float> normal = normal_floats(count);
  std::vector<Sum> sums(count);
  for (std::size_t j = 0; j < count; ++j) {
    const float half = static_cast<float>(most) / 2;
    sums[j] = static_cast<Sum>(std::clamp(half + normal[j] * half / 3, 0.0F, static_cast<float>(most)));
  }
  return sums;
}

TEST_P(Requantize, EqualsNaiveForAllBitsAndSizes) {
  for (const unsigned bits : {4U, 5U, 6U, 7U, 8U}) {
    for (const LookupTable& table : {identity_table(bits), uneven_table(bits), short_table(bits, 9)}) {
      for (const std::size_t size : {0UL, 64UL, 128UL, 192UL, 256UL, 320UL, 8128UL, 8192UL, 8256UL, 21056UL}) {
        SCOPED_TRACE(std::to_string(bits) + " bits, g " + std::to_string(table.granularity()) + ", size " +
                     std::to_string(size));
        expect_same<Requantized>([&](const Kernels& kernels) {
          return run_requantize(kernels, random_sums<std::uint8_t>(size, 204), 204, table, 512, size % 3);
        });
        expect_same<Requantized>([&](const Kernels& kernels) {
          return run_requantize(kernels, random_sums<std::uint16_t>(size, 65535), 65535, table, 256, size % 3);
        });
      }
    }
  }
}

TEST_P(Requantize, EqualsNaiveWhereAKnownErrorIsSubtracted) {
  const KnownError known = some_known_error();
  for (const std::size_t size : {64UL, 320UL, 8256UL, 21056UL}) {
    expect_same<Requantized>([&](const Kernels& kernels) {
      return run_requantize(kernels, random_sums<std::uint8_t>(size, 204), 204, identity_table(6), 512, 1, &known);
    });
    expect_same<Requantized>([&](const Kernels& kernels) {
      return run_requantize(kernels, random_sums<std::uint16_t>(size, 999), 999, uneven_table(5), 256, 0, &known);
    });
  }
}

TEST_P(Requantize, EqualSums) {
  use_instruction_set(GetParam());
  const LookupTable table = identity_table(6);
  for (const std::uint16_t sum : {std::uint16_t{0}, std::uint16_t{100}, std::uint16_t{200}}) {
    const auto [codes, scales] =
        run_requantize(Kernels{.naive = false}, std::vector<std::uint16_t>(320, sum), 200, table, 0);
    for (const std::uint16_t scale : scales) {
      EXPECT_EQ(scale, sum == 100 ? 0 : std::bit_cast<std::uint32_t>(200.0F) >> 16);
    }
    for (std::size_t j = 0; j < 320; ++j) {
      const unsigned code = read_code(codes.data(), j, 6);
      if (sum == 100) {  // 31.5
        EXPECT_TRUE(code == 31 || code == 32);
      } else {  // the ends of the grid, never clamped beyond
        EXPECT_EQ(code, sum == 0 ? 0U : 63U);
      }
    }
  }
}

TEST_P(Requantize, ScalesAreRoundedUp) {
  use_instruction_set(GetParam());
  std::vector<std::uint16_t> sums(256, 32768);
  sums[17] = 257;  // -65021, of which bfloat16 has 8 bits
  const auto [codes, scales] = run_requantize(Kernels{.naive = false}, sums, 65535, identity_table(8), 0);
  EXPECT_EQ(std::bit_cast<float>(std::uint32_t{scales[0]} << 16), 65024.0F);
}

/// What becomes of a residual of `coordinates` when the sums from `first` on are those of its owner.
template <class Sum>
std::vector<std::uint8_t> run_keep_loss(const Kernels& kernels, std::size_t coordinates, std::size_t rotation_block,
                                        std::size_t first, std::size_t count, std::uint16_t granularity, unsigned bits,
                                        std::size_t misalignment, FloatFormat kept, const KnownError* known) {
  const BlockLayout layout(coordinates, rotation_block);
  const std::uint32_t most = 3U * granularity;
  const LookupTable table = bits == 8 ? identity_table(bits) : uneven_table(bits);  // values of a byte
  Misaligned<Sum> in(random_sums<Sum>(count, most), misalignment);
  Misaligned<std::uint8_t> codes(code_bytes(count, bits), misalignment);
  Misaligned<std::uint16_t> scales(scale_groups(count), misalignment);
  RandomKey key = kKey;
  key.first = first;
  const ExactSums exact{in.data(), 8 * sizeof(Sum), count, most, known, 3, 2};
  kernels.requantize(exact, table, key, codes.data(), scales.data());
  std::vector<float> max_norms(layout.blocks());
  for (std::size_t b = 0; b < max_norms.size(); ++b) {
    max_norms[b] = b % 5 == 3 ? std::numeric_limits<float>::infinity() : 1.0F + static_cast<float>(b % 7);
  }
  Misaligned<std::uint8_t> residual(coordinates * float_bytes(kept), misalignment);
  naive::from_fp32(normal_floats(coordinates).data(), coordinates, {residual.data(), kept});
  kernels.keep_loss(RequantizedSums{exact, granularity, codes.data(), scales.data(), first}, table, max_norms.data(),
                    2.5F, layout, kKey, Floats{residual.data(), kept});
  return residual.values();
}

TEST_P(Requantize, KeptLossEqualsNaive) {
  struct Shard {
    std::size_t coordinates, rotation_block, first, count;
  };
  for (const Shard& shard :
       {Shard{64, 64, 0, 64}, Shard{1000, 256, 256, 512}, Shard{1000, 1024, 768, 256}, Shard{20000, 64, 9984, 10048},
        Shard{40000, 8192, 8448, 8448}, Shard{40000, 8192, 16384, 8192}, Shard{40000, 16384, 0, 40000}}) {
    for (const unsigned bits : {4U, 5U, 8U}) {
      SCOPED_TRACE(std::to_string(shard.coordinates) + " coordinates from " + std::to_string(shard.first) + ", " +
                   std::to_string(bits) + " bits");
      const KnownError known = some_known_error();
      const auto run = [&]<class Sum>(std::uint16_t granularity) {
        for (const FloatFormat kept : {FloatFormat::kFp32, FloatFormat::kBf16}) {
          expect_same<std::vector<std::uint8_t>>([&](const Kernels& kernels) {
            return run_keep_loss<Sum>(kernels, shard.coordinates, shard.rotation_block, shard.first, shard.count,
                                      granularity, bits, bits % 3, kept, bits == 5 ? &known : nullptr);
          });
        }
      };
      run.template operator()<std::uint8_t>(60);
      run.template operator()<std::uint16_t>(20000);
    }
  }
}

}  // namespace
}  // namespace thc::testing
