// Kernels on 2^20 coordinates, one thread, warm buffers, beside memcpy of the same 4 MiB. Run with
// --benchmark_repetitions=9 --benchmark_report_aggregates_only=true and compare medians of one run.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "csrc/use_instruction_set.h"
#include "thc/bit_stream.h"
#include "thc/decode.h"
#include "thc/lookup_sum.h"
#include "thc/quantization.h"
#include "thc/rotation.h"

namespace thc {
namespace {

constexpr std::size_t kCoordinates = std::size_t{1} << 20;
constexpr std::size_t kCodesPerChunk = 1024;
constexpr float kThreshold = 2.15F;
constexpr RandomKey kKey{1, 2, 3};
constexpr std::uint16_t kValues[] = {0, 3, 5, 7, 9, 11, 13, 14, 16, 17, 19, 21, 23, 25, 27, 30};

/// Buffers of one partition, with plausible contents in all of them.
struct Partition {
  explicit Partition(std::size_t rotation_block)
      : layout(kCoordinates, rotation_block),
        table(4, kValues),
        gradient(kCoordinates),
        rotated(layout.padded()),
        norms(layout.blocks()),
        codes(code_bytes(layout.padded(), table.bits())),
        sums(layout.padded()),
        contributions(layout.padded() / kCodesPerChunk, 1),
        average(kCoordinates) {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    for (float& value : gradient) {
      value = normal(generator);
    }
    block_norms({gradient.data(), FloatFormat::kFp32}, nullptr, layout, norms.data());
    encode(false);
    lookup_sum(codes.data(), layout.padded(), table, Accumulate::kWrite, sums.data());
  }

  void rotate_gradient() { rotate({gradient.data(), FloatFormat::kFp32}, nullptr, layout, kKey, rotated.data()); }
  void quantize_rotated(bool keep_error) {
    quantize(rotated.data(), norms.data(), layout, table, {kThreshold, kKey, {1, 0x8000}, keep_error}, codes.data());
  }
  void encode(bool keep_error) {
    rotate_gradient();
    quantize_rotated(keep_error);
  }
  void encode_less_known() {
    rotate_gradient();
    QuantizeOptions options{kThreshold, kKey, {1, 0x8000}, true};
    options.known = &known;
    quantize(rotated.data(), norms.data(), layout, table, options, codes.data());
  }
  void decode_sums(bool subtract) {
    Aggregate aggregate{sums.data(),         8,          contributions.data(), kCodesPerChunk,
                        table.granularity(), kThreshold, norms.data()};
    aggregate.known = subtract ? &known : nullptr;
    aggregate.workers = 1;
    aggregate.domain = 1;
    decode(aggregate, layout, kKey, {average.data(), FloatFormat::kFp32});
  }

  BlockLayout layout;
  LookupTable table;
  std::vector<float> gradient;
  std::vector<float> rotated;
  std::vector<float> norms;
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> sums;
  std::vector<std::uint8_t> contributions;
  std::vector<float> average;
  KnownError known{};
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

void add_all(Partition& partition, Partition& large_blocks) {
  for (const std::string& set : instruction_sets()) {
    add("rotate", set, [&] { partition.rotate_gradient(); });
    add("rotate_block_2^20", set, [&] { large_blocks.rotate_gradient(); });
    add("quantize", set, [&] { partition.quantize_rotated(false); });
    add("encode", set, [&] { partition.encode(false); });
    add("encode_keep_error", set, [&] { partition.encode(true); });
    add("encode_less_known_error", set, [&] { partition.encode_less_known(); });
    add("decode", set, [&] { partition.decode_sums(false); });
    add("decode_less_known_error", set, [&] { partition.decode_sums(true); });
    add("lookup_sum", set, [&] {
      lookup_sum(partition.codes.data(), kCoordinates, partition.table, Accumulate::kAdd, partition.sums.data());
    });
  }
}

}  // namespace
}  // namespace thc

int main(int argc, char** argv) {
  thc::Partition partition(thc::kDefaultRotationBlock);
  thc::Partition large_blocks(thc::kMaxRotationBlock);
  thc::add_all(partition, large_blocks);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
