// SipHash side by side against libsodium's, which hashes one message after the other.
#include "io/sip_hash.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "csrc/kernel_fixture.h"

namespace thc::io::test {
namespace {

using Bytes = std::vector<std::uint8_t>;

class SipHashSideBySide : public thc::testing::EveryInstructionSet {};
THC_INSTANTIATE_EVERY_INSTRUCTION_SET(SipHashSideBySide);

SipKey counting_key() {
  SipKey key;
  std::iota(key.begin(), key.end(), std::uint8_t{0});
  return key;
}

std::vector<SipKey> random_keys(std::size_t count) {
  std::vector<SipKey> keys(count);
  const Bytes bytes = thc::testing::random_bytes(count * sizeof(SipKey), 7);
  if (count > 0) std::memcpy(keys.data(), bytes.data(), bytes.size());
  return keys;
}

void expect_as_libsodium(const std::vector<SipMessage>& messages) {
  std::vector<SipHash64> short_hashes(messages.size() + 1, SipHash64{0xa5});
  std::vector<SipHash128> long_hashes(messages.size() + 1, SipHash128{0xa5});
  sip_hash(messages, short_hashes);
  sip_hash(messages, long_hashes);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    SCOPED_TRACE("message " + std::to_string(i) + " of " + std::to_string(messages.size()) + ", " +
                 std::to_string(messages[i].bytes.size()) + " bytes");
    ASSERT_EQ(short_hashes[i], naive::sip_hash_64(*messages[i].key, messages[i].bytes));
    ASSERT_EQ(long_hashes[i], naive::sip_hash_128(*messages[i].key, messages[i].bytes));
  }
  EXPECT_EQ(short_hashes.back(), SipHash64{0xa5}) << "written behind the end";
  EXPECT_EQ(long_hashes.back(), SipHash128{0xa5}) << "written behind the end";
}

// Of the reference implementation: key 00 01 .. 0f, messages 00 01 ..
TEST_P(SipHashSideBySide, KnownVectors) {
  thc::testing::use_instruction_set(GetParam());
  const SipKey key = counting_key();
  Bytes bytes(15);
  std::iota(bytes.begin(), bytes.end(), std::uint8_t{0});
  const std::vector<SipMessage> messages = {{{}, &key}, {std::span(bytes).first(1), &key}, {bytes, &key}};
  std::vector<SipHash64> short_hashes(3);
  std::vector<SipHash128> long_hashes(3);
  sip_hash(messages, short_hashes);
  sip_hash(messages, long_hashes);
  EXPECT_EQ(short_hashes[0], (SipHash64{0x31, 0x0e, 0x0e, 0xdd, 0x47, 0xdb, 0x6f, 0x72}));
  EXPECT_EQ(short_hashes[1], (SipHash64{0xfd, 0x67, 0xdc, 0x93, 0xc5, 0x39, 0xf8, 0x74}));
  EXPECT_EQ(short_hashes[2], (SipHash64{0xe5, 0x45, 0xbe, 0x49, 0x61, 0xca, 0x29, 0xa1}));
  EXPECT_EQ(long_hashes[0], (SipHash128{0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72, 0x14, 0xc7,
                                        0x55, 0x02, 0x93}));
}

TEST_P(SipHashSideBySide, AnyLengthCountAndAddress) {
  thc::testing::use_instruction_set(GetParam());
  const std::vector<SipKey> keys = random_keys(3);
  const Bytes bytes = thc::testing::random_bytes(20000);
  std::vector<std::size_t> lengths(140);
  std::iota(lengths.begin(), lengths.end(), std::size_t{0});
  lengths.insert(lengths.end(), {191, 192, 255, 256, 257, 511, 512, 513, 1024, 1031, 9000});
  for (const std::size_t length : lengths) {
    for (const std::size_t count : {1, 2, 3, 4, 5, 8, 9, 17}) {
      std::vector<SipMessage> messages;
      for (std::size_t i = 0; i < count; ++i) {  // at all addresses modulo 8
        messages.push_back({std::span(bytes).subspan(3 + 9 * i, length), &keys[i % keys.size()]});
      }
      expect_as_libsodium(messages);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(SipHashSideBySide, LengthsAndKeysMixed) {
  thc::testing::use_instruction_set(GetParam());
  const Bytes bytes = thc::testing::random_bytes(20000);
  std::mt19937 random(11);
  for (const std::size_t count : {0, 1, 2, 7, 15, 16, 31, 63, 64, 65, 128, 129, 200}) {
    const std::vector<SipKey> keys = random_keys(count);
    for (const std::size_t longest : {9, 70, 600, 9001}) {
      std::vector<SipMessage> messages;
      for (std::size_t i = 0; i < count; ++i) {
        messages.push_back({std::span(bytes).subspan(random() % 100, random() % longest), &keys[i]});
      }
      expect_as_libsodium(messages);
      if (HasFatalFailure()) return;
    }
  }
}

/// Pages between two that nobody may read.
class GuardedPages {
 public:
  explicit GuardedPages(std::size_t pages) : bytes_((pages + 2) * page_bytes()) {
    base_ =
        static_cast<std::uint8_t*>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_NE(base_, MAP_FAILED);
    EXPECT_EQ(mprotect(base_, page_bytes(), PROT_NONE), 0);
    EXPECT_EQ(mprotect(base_ + bytes_ - page_bytes(), page_bytes(), PROT_NONE), 0);
  }
  GuardedPages(const GuardedPages&) = delete;
  GuardedPages& operator=(const GuardedPages&) = delete;
  ~GuardedPages() { munmap(base_, bytes_); }

  std::span<std::uint8_t> readable() const { return {base_ + page_bytes(), bytes_ - 2 * page_bytes()}; }

 private:
  static std::size_t page_bytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

  std::size_t bytes_;
  std::uint8_t* base_;
};

// A sanitizer does not see loads by masks; a page that cannot be read does.
TEST_P(SipHashSideBySide, ReadsNothingBeforeOrBehindAMessage) {
  thc::testing::use_instruction_set(GetParam());
  const GuardedPages pages(3);
  const Bytes random = thc::testing::random_bytes(pages.readable().size());
  std::memcpy(pages.readable().data(), random.data(), random.size());
  const SipKey key = counting_key();
  for (std::size_t length = 0; length < 1100; length = length < 150 ? length + 1 : length + 37) {
    for (const std::size_t count : {2, 8, 16}) {
      expect_as_libsodium(std::vector<SipMessage>(count, {pages.readable().last(length), &key}));
      expect_as_libsodium(std::vector<SipMessage>(count, {pages.readable().first(length), &key}));
      std::vector<SipMessage> messages(count, {pages.readable().last(length), &key});
      messages[count / 2].bytes = pages.readable().last(length / 2);
      messages.back().bytes = {};
      expect_as_libsodium(messages);
      if (HasFatalFailure()) return;
    }
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/// The least time of several attempts: what other processes do does not matter then.
template <class Function>
std::chrono::nanoseconds least_time(const Function& function) {
  auto least = std::chrono::nanoseconds::max();
  for (int i = 0; i < 300; ++i) {
    const auto start = std::chrono::steady_clock::now();
    function();
    least = std::min<std::chrono::nanoseconds>(least, std::chrono::steady_clock::now() - start);
  }
  return least;
}

TEST(SipHash, ABurstTakesLessThanItsPackets) {
  thc::testing::use_instruction_set(std::nullopt);
  const std::string best = instruction_sets().front();
  if (best != "avx2" && best.find("avx3") != 0) GTEST_SKIP() << "too few lanes: " << best;
  const Bytes bytes = thc::testing::random_bytes(4096);
  const SipKey key = counting_key();
  const std::vector<SipMessage> messages(16, {std::span(bytes).first(1024), &key});
  std::vector<SipHash128> hashes(messages.size());
  const auto together = least_time([&] { sip_hash(messages, hashes); });
  const auto alone = least_time([&] {
    for (std::size_t i = 0; i < messages.size(); ++i) hashes[i] = naive::sip_hash_128(key, messages[i].bytes);
  });
  EXPECT_LT(together * 4, alone * 3);  // a quarter to a half, really
}
#endif

}  // namespace
}  // namespace thc::io::test
