// The same bits with any number of threads.
#include <thread>

#include "csrc/kernel_fixture.h"
#include "thc/decode.h"
#include "thc/encode.h"
#include "thc/lookup_sum.h"
#include "thc/pack.h"
#include "thc/rotation.h"

namespace thc::testing {
namespace {

constexpr std::size_t kCoordinates = 1'200'001;  // several ranges for every kernel; the last block is padded
constexpr std::size_t kCodesPerChunk = 11 * 64;  // chunks do not end where ranges do
constexpr float kThreshold = 2.0F;

/// Results of all kernels for one gradient, one after the other.
struct Results {
  std::vector<std::uint32_t> norms;
  std::vector<std::uint32_t> residual;
  std::vector<std::uint8_t> codes;
  std::size_t clamped;
  std::vector<std::uint8_t> sums;
  std::vector<std::uint32_t> average;
  bool operator==(const Results&) const = default;
};

Results run_all(ThreadPool* pool, const std::vector<std::size_t>& ends = {}, unsigned bits = 3,
                FloatFormat format = FloatFormat::kFp32) {
  const BlockLayout layout(kCoordinates, 1024, ends);
  const LookupTable table = bits < 8 ? uneven_table(bits) : identity_table(bits);  // sums have 8 bits
  std::vector<std::uint32_t> gradient(kCoordinates);
  const Floats floats{gradient.data(), format};
  from_fp32(normal_floats(kCoordinates).data(), kCoordinates, floats);
  std::vector<float> residual = normal_floats(kCoordinates, 3);
  std::vector<float> norms(layout.blocks());
  std::vector<std::uint8_t> codes(code_bytes(layout.padded(), bits));
  std::vector<std::uint8_t> sums(layout.padded(), 1);
  const std::vector<std::uint8_t> random = random_bytes(layout.padded() / kCodesPerChunk + 1);
  const std::vector<std::uint16_t> contributions(random.begin(), random.end());
  std::vector<std::uint32_t> average(kCoordinates);
  block_norms(pool, floats, residual.data(), layout, norms.data());
  const std::size_t clamped = encode(pool, floats, residual.data(), norms.data(), layout, table,
                                     {kThreshold, kKey, {4, 0x5555}, true}, codes.data());
  lookup_sum(codes.data(), layout.padded(), table, Accumulate::kAdd, sums.data());
  const Aggregate aggregate{sums.data(),         8,          contributions.data(), kCodesPerChunk,
                            table.granularity(), kThreshold, norms.data()};
  decode(pool, aggregate, layout, kKey, {average.data(), format});
  return {bits_of(norms), bits_of(residual), codes, clamped, sums, average};
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
    for (std::thread& caller : callers) caller.join();
  }
}

TEST(ThreadedKernels, GiveTheSameBitsWhereBlocksEnd) {
  std::vector<std::size_t> ends;
  for (std::size_t end = 128; end < kCoordinates; end += 128 * 77) ends.push_back(end);
  const Results alone = run_all(nullptr, ends);
  EXPECT_FALSE(alone == run_all(nullptr));
  for (const unsigned threads : {2U, 3U, kMaxThreads}) {
    ThreadPool pool(threads);
    EXPECT_TRUE(run_all(&pool, ends) == alone) << threads << " threads";
  }
}

TEST(ThreadedKernels, GiveTheSameBitsForEveryWidthAndFormat) {
  ThreadPool pool(3);
  for (unsigned bits = 1; bits <= 8; ++bits) {
    const auto format = static_cast<FloatFormat>(bits % 3);
    EXPECT_TRUE(run_all(&pool, {}, bits, format) == run_all(nullptr, {}, bits, format)) << bits << " bits";
  }
}

}  // namespace
}  // namespace thc::testing
