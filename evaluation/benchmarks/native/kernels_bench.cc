// Kernels on 2^20 coordinates, one thread, warm buffers, beside memcpy of the same 4 MiB. Run with
// --benchmark_repetitions=9 --benchmark_report_aggregates_only=true and compare medians of one run.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "csrc/use_instruction_set.h"
#include "thc/bit_stream.h"
#include "thc/decode.h"
#include "thc/lookup_sum.h"
#include "thc/pack.h"
#include "thc/quantization.h"
#include "thc/rotation.h"

namespace thc {
namespace {

constexpr std::size_t kCoordinates = std::size_t{1} << 20;
constexpr std::size_t kCodesPerChunk = 1024;
constexpr float kThreshold = 2.15F;
constexpr RandomKey kKey{1, 2, 3};

/// Values that lie closer in the middle, as those of solved tables do, where the grid is fine enough.
LookupTable plausible_table(unsigned bits, std::uint16_t granularity) {
  std::vector<std::uint16_t> values(std::size_t{1} << bits);
  const double middle = static_cast<double>(values.size() - 1) / 2;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double x = (static_cast<double>(i) - middle) / middle;
    const double bent = granularity < 2 * values.size() ? x : x * (1 + x * x / 3) * 0.75;
    values[i] = static_cast<std::uint16_t>(std::lround(granularity * (1 + bent) / 2));
  }
  return {bits, values};
}

/// Buffers of one partition, with plausible contents in all of them.
struct Partition {
  Partition(std::size_t rotation_block, const LookupTable& lookup_table)
      : layout(kCoordinates, rotation_block),
        table(lookup_table),
        gradient(kCoordinates),
        rotated(layout.padded()),
        norms(layout.blocks()),
        codes(code_bytes(layout.padded(), table.bits())),
        unpacked(layout.padded()),
        sums(layout.padded()),
        wide_sums(layout.padded()),
        contributions(layout.padded() / kCodesPerChunk, 1),
        average(kCoordinates) {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    for (float& value : gradient) {
      value = normal(generator);
    }
    block_norms({gradient.data(), FloatFormat::kFp32}, {}, layout, norms.data());
    encode(false);
    add_up(Accumulate::kWrite, sums);
    unpack_codes();
  }

  void rotate_gradient() { rotate({gradient.data(), FloatFormat::kFp32}, {}, layout, kKey, rotated.data()); }
  void quantize_rotated(bool keep_error) {
    quantize(rotated.data(), norms.data(), layout, table, {kThreshold, kKey, {1, 0x8000}, keep_error}, codes.data());
  }
  void encode(bool keep_error) {
    rotate_gradient();
    quantize_rotated(keep_error);
  }
  template <typename Sum>
  void add_up(Accumulate mode, std::vector<Sum>& to) {
    lookup_sum(codes.data(), layout.padded(), table, mode, to.data());
  }
  void unpack_codes() { unpack(codes.data(), layout.padded(), table.bits(), unpacked.data()); }
  void pack_codes() { pack(unpacked.data(), layout.padded(), table.bits(), codes.data()); }
  void decode_sums() {
    const Aggregate aggregate{sums.data(),         8,          contributions.data(), kCodesPerChunk,
                              table.granularity(), kThreshold, norms.data()};
    decode(aggregate, layout, kKey, {average.data(), FloatFormat::kFp32});
  }

  BlockLayout layout;
  LookupTable table;
  std::vector<float> gradient;
  std::vector<float> rotated;
  std::vector<float> norms;
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> unpacked;
  std::vector<std::uint8_t> sums;
  std::vector<std::uint16_t> wide_sums;
  std::vector<std::uint8_t> contributions;
  std::vector<float> average;
};

void bench_memcpy(benchmark::State& state) {
  const std::vector<float> from(kCoordinates, 1.0F);
  std::vector<float> to(kCoordinates);
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), kCoordinates * sizeof(float));
    benchmark::ClobberMemory();
  }
}
BENCHMARK(bench_memcpy)->Unit(benchmark::kMicrosecond);

template <typename Kernel>
void run(benchmark::State& state, const std::string& instruction_set, Kernel kernel) {
  testing::use_instruction_set(instruction_set);
  for (auto _ : state) {
    kernel();
    benchmark::ClobberMemory();
  }
  testing::use_instruction_set(std::nullopt);
}

template <typename Kernel>
void add(const std::string& name, const std::string& instruction_set, Kernel kernel) {
  benchmark::RegisterBenchmark((name + "/" + instruction_set).c_str(), [=](benchmark::State& state) {
    run(state, instruction_set, kernel);
  })->Unit(benchmark::kMicrosecond);
}

void add_rotations(Partition& partition, Partition& large_blocks, const std::string& set) {
  add("rotate", set, [&] { partition.rotate_gradient(); });
  add("rotate_block_2^20", set, [&] { large_blocks.rotate_gradient(); });
}

/// Kernels that depend on the table; their names end with its bits and granularity.
void add_codes(Partition& partition, const std::string& set) {
  const std::string bits = "/" + std::to_string(partition.table.bits());
  const std::string table = bits + "/g" + std::to_string(partition.table.granularity());
  add("quantize" + table, set, [&] { partition.quantize_rotated(false); });
  add("quantize_keep_error" + table, set, [&] { partition.quantize_rotated(true); });
  add("encode" + table, set, [&] { partition.encode(false); });
  add("encode_keep_error" + table, set, [&] { partition.encode(true); });
  add("decode" + table, set, [&] { partition.decode_sums(); });
  add("decode_codes" + table, set, [&] {
    partition.add_up(Accumulate::kWrite, partition.sums);
    partition.decode_sums();
  });
  add("lookup_sum_8" + table, set, [&] { partition.add_up(Accumulate::kAdd, partition.sums); });
  add("lookup_sum_16" + table, set, [&] { partition.add_up(Accumulate::kAdd, partition.wide_sums); });
  add("pack" + table, set, [&] { partition.pack_codes(); });
  add("unpack" + table, set, [&] { partition.unpack_codes(); });
}

}  // namespace
}  // namespace thc

int main(int argc, char** argv) {
  struct Table {
    unsigned bits;
    std::uint16_t granularity;
  };
  std::deque<thc::Partition> partitions;
  for (const auto [bits, granularity] :
       {Table{4, 30}, {4, 255}, {5, 63}, {5, 127}, {5, 255}, {5, 1000}, {6, 100}, {6, 255}, {8, 255}, {8, 800}}) {
    partitions.emplace_back(thc::kDefaultRotationBlock, thc::plausible_table(bits, granularity));
  }
  thc::Partition large_blocks(thc::kMaxRotationBlock, partitions[0].table);
  for (const std::string& set : thc::instruction_sets()) {
    thc::add_rotations(partitions[0], large_blocks, set);
    for (thc::Partition& partition : partitions) {
      thc::add_codes(partition, set);
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
