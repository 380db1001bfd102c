// Checksums of datagrams without a tag: vectors, drops, and the flag that announces checksums.
#include "io/checked_io.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "thc/wire_layout.h"
#include "worker_dpdk/session/memory_network.h"

namespace thc::io::test {
namespace {

using testing::Datagram;
using testing::MemoryIo;

constexpr Endpoint kPeer{0x0a000001, 48865};
using HeaderBytes = std::array<std::uint8_t, sizeof(wire::Header)>;

/// Bytes 3, 4, 5 .. behind version, type and flags, so that the place of the checksum is not zero either.
HeaderBytes make_header(wire::MessageType type = wire::MessageType::kAggregate,
                        std::uint8_t flags = wire::kFlagChecksum) {
  HeaderBytes header;
  std::iota(header.begin(), header.end(), std::uint8_t{0});
  header[0] = wire::kVersion;
  header[1] = static_cast<std::uint8_t>(type);
  header[2] = flags;
  return header;
}

Datagram make_payload(std::size_t bytes) {
  Datagram payload(bytes);
  std::iota(payload.begin(), payload.end(), std::uint8_t{0});
  return payload;
}

class CheckedIoTest : public ::testing::Test {
 protected:
  CheckedIoTest() : CheckedIoTest(std::make_unique<MemoryIo>()) {}

  Datagram sent(std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload) {
    EXPECT_TRUE(packet_io.send(kPeer, header, payload));
    packet_io.flush();
    auto datagrams = wire.take_sent();
    EXPECT_EQ(datagrams.size(), 1U);
    return datagrams.empty() ? Datagram{} : datagrams[0];
  }

  /// The datagrams that pass, of a burst.
  std::vector<Datagram> taken(const std::vector<Datagram>& datagrams) {
    for (const Datagram& datagram : datagrams) wire.arriving.push_back({kPeer, datagram});
    std::array<RxPacket, 64> packets;
    const std::size_t count = packet_io.receive(packets);
    std::vector<Datagram> taken;
    for (const RxPacket& packet : std::span(packets).first(count)) {
      taken.emplace_back(packet.data, packet.data + packet.size_bytes);
    }
    return taken;
  }

  MemoryIo& wire;
  CheckedIo packet_io;

 private:
  explicit CheckedIoTest(std::unique_ptr<MemoryIo> inner) : wire(*inner), packet_io(std::move(inner)) {}
};

std::uint32_t checksum_in(const Datagram& datagram) {
  be32_t sum;
  std::memcpy(&sum, datagram.data() + kChecksumOffset, sizeof sum);
  return sum;
}

// From tests/lib/packet_checksum.py.
TEST_F(CheckedIoTest, ChecksumsMatchVectors) {
  const std::vector<std::pair<std::size_t, std::uint32_t>> vectors{
      {0, 0x01d0373e},  {1, 0x1dfa8392},  {7, 0x41d2a1ca},  {8, 0xece63660},   {9, 0x11ed5fba},
      {31, 0x98399129}, {32, 0x6f95b21e}, {33, 0xc9b8e663}, {100, 0x56c92634}, {1024, 0x0347bae6}};
  for (const auto& [bytes, expected] : vectors) {
    EXPECT_EQ(checksum_in(sent(make_header(), make_payload(bytes))), expected) << bytes;
  }
}

TEST_F(CheckedIoTest, AShortPayloadMayComeWithTheHeader) {
  const HeaderBytes header = make_header();
  const Datagram payload = make_payload(24);
  Datagram whole(header.begin(), header.end());
  whole.insert(whole.end(), payload.begin(), payload.end());
  EXPECT_EQ(sent(whole, {}), sent(header, payload));
}

TEST_F(CheckedIoTest, HandsOnWhatIsSound) {
  for (const std::size_t bytes : {0, 1, 7, 8, 100, 9000}) {
    const Datagram datagram = sent(make_header(), make_payload(bytes));
    EXPECT_EQ(taken({datagram}), (std::vector<Datagram>{datagram}));
  }
  EXPECT_EQ(packet_io.counters().rx_damaged, 0U);
}

TEST_F(CheckedIoTest, EveryFlippedBitIsNoticed) {
  const Datagram good = sent(make_header(), make_payload(100));
  std::uint64_t dropped = 0;
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    Datagram bad = good;
    bad[bit / 8] ^= static_cast<std::uint8_t>(1U << bit % 8);
    const bool is_flag = bit / 8 == offsetof(wire::Header, flags) && (1U << bit % 8) == wire::kFlagChecksum;
    if (is_flag) {  // taken for one without, which must have zeros in place of the checksum
      EXPECT_NE(checksum_in(bad), 0U);
      continue;
    }
    EXPECT_EQ(taken({bad, good, bad}), (std::vector<Datagram>{good})) << "bit " << bit;
    dropped += 2;
  }
  EXPECT_EQ(packet_io.counters().rx_damaged, dropped);
}

TEST_F(CheckedIoTest, EveryExchangedWordIsNoticed) {
  const Datagram good = sent(make_header(), make_payload(100));
  for (std::size_t a = sizeof(wire::Header); a + 8 <= good.size(); a += 8) {
    for (std::size_t b = a + 8; b + 8 <= good.size(); b += 8) {
      Datagram bad = good;
      std::swap_ranges(bad.begin() + static_cast<std::ptrdiff_t>(a), bad.begin() + static_cast<std::ptrdiff_t>(a) + 8,
                       bad.begin() + static_cast<std::ptrdiff_t>(b));
      EXPECT_TRUE(taken({bad}).empty()) << a << " and " << b;
    }
  }
}

TEST_F(CheckedIoTest, WithoutTheFlagNothingChanges) {
  const HeaderBytes header = make_header(wire::MessageType::kCodes, wire::kFlagRetransmit);
  Datagram expected(header.begin(), header.end());
  const Datagram payload = make_payload(100);
  expected.insert(expected.end(), payload.begin(), payload.end());
  EXPECT_EQ(sent(header, payload), expected);
  EXPECT_EQ(taken({expected, Datagram(5)}).size(), 2U);
}

TEST_F(CheckedIoTest, AChallengeTellsOfChecksumsAndHasNone) {
  const Datagram challenge = sent(make_header(wire::MessageType::kChallenge, 0), make_payload(8));
  EXPECT_EQ(challenge[offsetof(wire::Header, flags)], wire::kFlagChecksum);
  EXPECT_EQ(challenge, sent(make_header(wire::MessageType::kChallenge), make_payload(8)));
  const auto place = std::span(challenge).subspan(kChecksumOffset, 4);
  const HeaderBytes header = make_header(wire::MessageType::kChallenge);
  EXPECT_TRUE(std::ranges::equal(place, std::span(header).subspan(kChecksumOffset, 4))) << "a leaf may be a switch";
  EXPECT_EQ(taken({challenge}).size(), 1U);
}

TEST_F(CheckedIoTest, APayloadSentInARowIsCheckedAsAlone) {
  std::vector<Datagram> expected;
  Datagram payload = make_payload(1000);
  for (std::uint8_t worker = 0; worker < 3; ++worker) {
    HeaderBytes header = make_header();
    header[5] = worker;
    expected.push_back(sent(header, payload));
  }
  for (std::uint8_t worker = 0; worker < 3; ++worker) {
    HeaderBytes header = make_header();
    header[5] = worker;
    EXPECT_TRUE(packet_io.send(kPeer, header, payload));
  }
  packet_io.flush();
  EXPECT_EQ(wire.take_sent(), expected);
  payload[7] ^= 1;  // may change behind the flush
  const Datagram changed = sent(make_header(), payload);
  EXPECT_EQ(taken({changed}), (std::vector<Datagram>{changed}));
}

}  // namespace
}  // namespace thc::io::test
