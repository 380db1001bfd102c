// The same bits with any number of threads. More sizes, widths and formats: tests/reference/test_kernel_threads.py;
// this one is for the sanitizers.
#include "thc/threaded_kernels.h"

#include <thread>

#include "csrc/kernel_fixture.h"
#include "thc/bit_stream.h"
#include "thc/lookup_sum.h"

namespace thc::testing {
namespace {

constexpr std::size_t kCoordinates = 1'200'001;  // several ranges for every kernel; the last block is padded
constexpr std::size_t kCodesPerChunk = 11 * 64;  // chunks do not end where ranges do
constexpr unsigned kBits = 3;
constexpr float kThreshold = 2.0F;

/// What all kernels make of one gradient, one after the other.
struct Results {
  std::vector<std::uint32_t> norms;
  std::vector<std::uint32_t> residual;
  std::vector<std::uint8_t> codes;
  std::size_t clamped;
  std::vector<std::uint8_t> sums;
  std::vector<std::uint32_t> average;
  bool operator==(const Results&) const = default;
};

Results run_all(ThreadPool* pool, const std::vector<std::size_t>& ends = {}) {
  const BlockLayout layout(kCoordinates, 1024, ends);
  const LookupTable table = uneven_table(kBits);
  const std::vector<float> gradient = normal_floats(kCoordinates);
  const ConstFloats floats{gradient.data(), FloatFormat::kFp32};
  std::vector<float> residual = normal_floats(kCoordinates, 3);
  std::vector<float> norms(layout.blocks());
  std::vector<std::uint8_t> codes(code_bytes(layout.padded(), kBits));
  std::vector<std::uint8_t> sums(layout.padded(), 1);
  const std::vector<std::uint8_t> contributions = random_bytes(layout.padded() / kCodesPerChunk + 1);
  std::vector<float> average(kCoordinates);
  threaded::block_norms(pool, floats, residual.data(), layout, norms.data());
  const std::size_t clamped = threaded::encode(pool, floats, residual.data(), norms.data(), layout, table,
                                               {kThreshold, kKey, {4, 0x5555}, true}, codes.data());
  lookup_sum(codes.data(), layout.padded(), table, Accumulate::kAdd, sums.data());
  const Aggregate aggregate{sums.data(),         8,          contributions.data(), kCodesPerChunk,
                            table.granularity(), kThreshold, norms.data()};
  threaded::decode(pool, aggregate, layout, kKey, {average.data(), FloatFormat::kFp32});
  return {bits_of(norms), bits_of(residual), codes, clamped, sums, bits_of(average)};
}

TEST(ThreadedKernels, GiveTheSameBitsToConcurrentCallers) {
  const Results alone = run_all(nullptr);
  EXPECT_GT(alone.clamped, 0U);
  for (const unsigned threads : {1U, 2U, 3U, kMaxThreads}) {
    ThreadPool pool(threads);
    std::vector<std::thread> callers;
    for (int c = 0; c < 4; ++c) {
      callers.emplace_back([&] { EXPECT_TRUE(run_all(&pool) == alone) << threads << " threads"; });
    }
    for (std::thread& caller : callers) {
      caller.join();
    }
  }
}

TEST(ThreadedKernels, GiveTheSameBitsWhereBlocksEnd) {
  std::vector<std::size_t> ends;
  for (std::size_t end = 128; end < kCoordinates; end += 128 * 77) {
    ends.push_back(end);
  }
  const Results alone = run_all(nullptr, ends);
  EXPECT_FALSE(alone == run_all(nullptr));
  for (const unsigned threads : {2U, 3U, kMaxThreads}) {
    ThreadPool pool(threads);
    EXPECT_TRUE(run_all(&pool, ends) == alone) << threads << " threads";
  }
}

}  // namespace
}  // namespace thc::testing
