// Frames that are right are taken, frames that are cut, broken or for others are told apart.
#include "io/frame.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <utility>
#include <vector>

namespace thc::io {
namespace {

constexpr MacAddress kOurMac{2, 0, 0, 0, 0, 1};
constexpr MacAddress kPeerMac{2, 0, 0, 0, 0, 2};
constexpr Endpoint kOurs{0x0a000001, 5000};
constexpr Endpoint kPeer{0x0a000002, 6000};
constexpr FrameFilter kFilter{kOurMac, kOurs};

std::vector<std::uint8_t> make_frame(std::size_t payload_bytes) {
  UdpFrameHeader header = make_frame_template(kPeerMac, kPeer, kOurMac, kOurs.ip.ipv4());
  complete_frame(header, kOurs.port, payload_bytes);
  std::vector<std::uint8_t> frame(sizeof header + payload_bytes);
  for (std::size_t i = 0; i < payload_bytes; ++i) frame[sizeof header + i] = static_cast<std::uint8_t>(i * 13 + 5);
  std::memcpy(frame.data(), &header, sizeof header);
  header.udp.checksum = udp_checksum(header.ip, std::span(frame).subspan(34));
  std::memcpy(frame.data(), &header, sizeof header);
  return frame;
}

/// Recomputes the IPv4 checksum after a change, so that only the change is wrong.
void repair_ip_checksum(std::vector<std::uint8_t>& frame) {
  frame[24] = frame[25] = 0;
  std::uint32_t sum = 0;
  for (std::size_t i = 14; i < 34; i += 2) sum += static_cast<std::uint32_t>(frame[i] << 8 | frame[i + 1]);
  sum = (sum & 0xffff) + (sum >> 16);
  sum = ~((sum & 0xffff) + (sum >> 16));
  frame[24] = static_cast<std::uint8_t>(sum >> 8);
  frame[25] = static_cast<std::uint8_t>(sum);
}

TEST(FrameTest, TakesWhatItBuilds) {
  for (const std::size_t payload_bytes : {1U, 2U, 3U, 4U, 7U, 544U, 1056U, 1472U}) {
    const std::vector<std::uint8_t> frame = make_frame(payload_bytes);
    const ParsedFrame parsed = parse_frame(frame, kFilter);
    ASSERT_EQ(parsed.kind, FrameKind::kDatagram) << payload_bytes;
    EXPECT_EQ(parsed.payload.data(), frame.data() + 42);
    EXPECT_EQ(parsed.payload.size(), payload_bytes);
    EXPECT_EQ(parsed.from, kPeer);
    EXPECT_EQ(parsed.from_mac, kPeerMac);
  }
}

TEST(FrameTest, TellsTheMarkOfAFullQueue) {
  std::vector<std::uint8_t> frame = make_frame(48);
  ASSERT_EQ(frame[15], kEcnCapable);
  // Other bits of the byte are the network's own (DSCP).
  for (const auto& [second_byte, congested] :
       {std::pair{0, false}, {1, false}, {2, false}, {3, true}, {0xb8, false}, {0xbb, true}}) {
    frame[15] = static_cast<std::uint8_t>(second_byte);
    repair_ip_checksum(frame);
    const ParsedFrame parsed = parse_frame(frame, kFilter);
    ASSERT_EQ(parsed.kind, FrameKind::kDatagram) << second_byte;
    EXPECT_EQ(parsed.congested, congested) << second_byte;
  }
}

TEST(FrameTest, IgnoresWhatFollowsTheDatagram) {
  for (const std::size_t trailer_bytes : {1U, 15U, 512U}) {  // Ethernet's padding, or codes that a switch did not parse
    std::vector<std::uint8_t> frame = make_frame(48);
    frame.resize(frame.size() + trailer_bytes, 0xaa);
    const ParsedFrame parsed = parse_frame(frame, kFilter);
    ASSERT_EQ(parsed.kind, FrameKind::kDatagram) << trailer_bytes;
    EXPECT_EQ(parsed.payload.size(), 48U) << trailer_bytes;
  }
}

TEST(FrameTest, ChecksumMatchesAKnownPacket) {
  // The example of RFC 1071 section 3 as a payload, checked by hand against the definition.
  Ipv4Header ip{};
  ip.source = 0xc0a80001;
  ip.destination = 0xc0a800c7;
  const std::vector<std::uint8_t> udp{0x13, 0x88, 0x17, 0x70, 0x00, 0x10, 0x00, 0x00,
                                      0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7};
  std::uint32_t sum = 0xc0a8 + 0x0001 + 0xc0a8 + 0x00c7 + 17 + 16;
  for (std::size_t i = 0; i < udp.size(); i += 2) sum += static_cast<std::uint32_t>(udp[i] << 8 | udp[i + 1]);
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  EXPECT_EQ(udp_checksum(ip, udp), static_cast<std::uint16_t>(~sum));
}

TEST(FrameTest, EveryCutIsMalformed) {
  const std::vector<std::uint8_t> frame = make_frame(64);
  for (std::size_t size_bytes = 0; size_bytes < frame.size(); ++size_bytes) {
    EXPECT_EQ(parse_frame({frame.data(), size_bytes}, kFilter).kind, FrameKind::kMalformed) << size_bytes;
  }
}

TEST(FrameTest, EveryFlippedBitOfThePacketIsNoticed) {
  const std::vector<std::uint8_t> frame = make_frame(20);
  for (std::size_t bit = 14 * 8; bit < frame.size() * 8; ++bit) {
    std::vector<std::uint8_t> broken = frame;
    broken[bit / 8] ^= static_cast<std::uint8_t>(1U << bit % 8);
    EXPECT_NE(parse_frame(broken, kFilter).kind, FrameKind::kDatagram) << "bit " << bit;
  }
}

struct Change {
  std::size_t offset;
  std::uint8_t value;
  FrameKind expected;
  const char* what;
};

TEST(FrameTest, TellsOtherFromMalformed) {
  const Change changes[] = {
      {0, 0x0e, FrameKind::kOther, "another MAC"},
      {13, 0xdd, FrameKind::kOther, "another protocol over Ethernet"},
      {14, 0x65, FrameKind::kMalformed, "IP version 6"},
      {14, 0x44, FrameKind::kMalformed, "IP header of 16 bytes"},
      {14, 0x4f, FrameKind::kMalformed, "IP options that are not there"},
      {16, 0xff, FrameKind::kMalformed, "IP length beyond the frame"},
      {17, 0x10, FrameKind::kMalformed, "IP length below its header"},
      {20, 0x20, FrameKind::kMalformed, "first fragment"},
      {21, 0x01, FrameKind::kMalformed, "later fragment"},
      {23, 6, FrameKind::kOther, "TCP"},
      {33, 0x63, FrameKind::kOther, "another IP address"},
      {37, 0x01, FrameKind::kOther, "another port"},
      {39, 0x07, FrameKind::kMalformed, "UDP length below its header"},
      {38, 0xff, FrameKind::kMalformed, "UDP length beyond the packet"},
  };
  for (const Change& change : changes) {
    std::vector<std::uint8_t> frame = make_frame(64);
    frame[change.offset] = change.value;
    repair_ip_checksum(frame);
    EXPECT_EQ(parse_frame(frame, kFilter).kind, change.expected) << change.what;
  }
}

TEST(FrameTest, ChecksumMayBeAbsentOrLeftToTheDevice) {
  std::vector<std::uint8_t> frame = make_frame(64);
  frame[41] ^= 1;
  EXPECT_EQ(parse_frame(frame, kFilter).kind, FrameKind::kMalformed);
  FrameFilter trusting = kFilter;
  trusting.check_udp_checksum = false;
  EXPECT_EQ(parse_frame(frame, trusting).kind, FrameKind::kDatagram);
  frame[40] = frame[41] = 0;
  EXPECT_EQ(parse_frame(frame, kFilter).kind, FrameKind::kDatagram);
}

TEST(FrameTest, RandomBytesNeverReadOutOfBounds) {
  std::mt19937 random(7);
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::uint8_t> frame = make_frame(random() % 80);
    frame.resize(random() % (frame.size() + 1));
    for (int changes = 0; changes < 3 && !frame.empty(); ++changes) {
      frame[random() % frame.size()] = static_cast<std::uint8_t>(random());
    }
    FrameFilter filter = kFilter;
    filter.check_ip_checksum = filter.check_udp_checksum = false;
    const std::vector<std::uint8_t> exact(frame);  // on the heap and of exact size: ASan sees one byte too far
    const ParsedFrame parsed = parse_frame(exact, filter);
    if (parsed.kind == FrameKind::kDatagram) {
      EXPECT_LE(parsed.payload.data() + parsed.payload.size(), exact.data() + exact.size());
    }
    parse_arp(exact);
  }
}

TEST(FrameTest, ReadsTheArpItMakes) {
  const ArpFrame frame = make_arp(kArpRequest, kPeerMac, kPeer.ip.ipv4(), kBroadcastMac, kOurs.ip.ipv4());
  const std::span<const std::uint8_t> bytes{reinterpret_cast<const std::uint8_t*>(&frame), sizeof frame};
  EXPECT_EQ(parse_frame(bytes, kFilter).kind, FrameKind::kArp);
  const auto arp = parse_arp(bytes);
  ASSERT_TRUE(arp.has_value());
  EXPECT_EQ(arp->sender_ip, kPeer.ip.ipv4());
  EXPECT_EQ(arp->sender_mac, kPeerMac);
  EXPECT_EQ(arp->target_ip, kOurs.ip.ipv4());
  EXPECT_FALSE(parse_arp(bytes.first(41)).has_value());
}

}  // namespace
}  // namespace thc::io
