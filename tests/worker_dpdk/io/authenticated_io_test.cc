// Tags of authenticated jobs: vectors, what is dropped, and key files.
#include "io/authenticated_io.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "io/job_keys.h"
#include "thc/errors.h"
#include "thc/wire_layout.h"
#include "worker_dpdk/session/memory_network.h"

namespace thc::io::test {
namespace {

using testing::Datagram;
using testing::MemoryIo;

constexpr Endpoint kPeer{0x0a000001, 48865};

JobKey counting_key() {
  JobKey key;
  std::iota(key.begin(), key.end(), std::uint8_t{0});
  return key;
}

std::string hex_of(std::span<const std::uint8_t> bytes) {
  std::string text;
  for (const std::uint8_t byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

/// Header of job 7, slot 3, round 5, without anything else.
std::array<std::uint8_t, 32> make_header(std::uint16_t job = 7) {
  wire::Header header{};
  header.version = std::uint8_t{1};
  header.job_id = job;
  header.round = std::uint32_t{5};
  header.slot = std::uint32_t{3};
  std::array<std::uint8_t, 32> bytes;
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

std::vector<std::uint8_t> make_payload(std::size_t bytes = 100) {
  std::vector<std::uint8_t> payload(bytes);
  std::iota(payload.begin(), payload.end(), std::uint8_t{0});
  return payload;
}

/// One end, with its wire in memory.
struct End {
  explicit End(Direction sends, const JobKeys& keys = JobKeys(counting_key())) {
    auto wire_io = std::make_unique<MemoryIo>();
    wire = wire_io.get();
    packet_io = std::make_unique<AuthenticatedIo>(std::move(wire_io), keys, sends);
  }

  Datagram sent(std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload) {
    EXPECT_TRUE(packet_io->send(kPeer, header, payload));
    packet_io->flush();
    auto datagrams = wire->take_sent();
    EXPECT_EQ(datagrams.size(), 1U);
    return datagrams.empty() ? Datagram{} : datagrams[0];
  }

  /// The datagrams that pass, of a burst.
  std::vector<Datagram> taken(const std::vector<Datagram>& datagrams) {
    for (const Datagram& datagram : datagrams) wire->arriving.push_back({kPeer, datagram});
    std::array<RxPacket, 64> packets;
    const std::size_t count = packet_io->receive(packets);
    std::vector<Datagram> taken;
    for (std::size_t i = 0; i < count; ++i) {
      taken.emplace_back(packets[i].data, packets[i].data + packets[i].size_bytes);
    }
    return taken;
  }

  MemoryIo* wire;
  std::unique_ptr<AuthenticatedIo> packet_io;
};

// From tests/lib/datagram_tags.py, which knows nothing of libsodium.
TEST(AuthenticatedIoTest, TagsMatchVectors) {
  const auto header = make_header();
  const auto payload = make_payload();
  const auto tag_of = [](const Datagram& datagram) { return hex_of(std::span(datagram).last(kTagBytes)); };
  EXPECT_EQ(tag_of(End(Direction::kUp).sent(header, payload)), "9eccccd4dbede76f");
  EXPECT_EQ(tag_of(End(Direction::kUp).sent(header, {})), "aa399e85e21b16e2");
  EXPECT_EQ(tag_of(End(Direction::kDown).sent(header, payload)), "733a0acaf8cde0ec");
  EXPECT_EQ(tag_of(End(Direction::kDown).sent(header, {})), "9da422fd2146308a");
}

TEST(AuthenticatedIoTest, AShortPayloadMayComeWithTheHeader) {
  const auto header = make_header();
  std::vector<std::uint8_t> whole(header.begin(), header.end());
  const auto payload = make_payload(24);
  whole.insert(whole.end(), payload.begin(), payload.end());
  EXPECT_EQ(End(Direction::kUp).sent(whole, {}), End(Direction::kUp).sent(header, payload));
}

TEST(AuthenticatedIoTest, HandsOnWhatTheOtherEndSent) {
  End worker(Direction::kUp);
  End server(Direction::kDown);
  for (const std::size_t bytes : {0, 1, 7, 8, 100, 9000}) {
    const auto payload = make_payload(bytes);
    const Datagram datagram = worker.sent(make_header(), payload);
    EXPECT_EQ(datagram.size(), 32 + bytes + kTagBytes);
    EXPECT_EQ(server.taken({datagram}),
              (std::vector<Datagram>{Datagram(datagram.begin(), datagram.end() - kTagBytes)}));
  }
  EXPECT_EQ(server.packet_io->counters().rx_unauthenticated, 0U);
}

TEST(AuthenticatedIoTest, EveryFlippedBitIsNoticed) {
  End worker(Direction::kUp);
  End server(Direction::kDown);
  const Datagram good = worker.sent(make_header(), make_payload(40));
  std::uint64_t dropped = 0;
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    Datagram bad = good;
    bad[bit / 8] ^= static_cast<std::uint8_t>(1U << bit % 8);
    EXPECT_EQ(server.taken({bad, good, bad}).size(), 1U) << "bit " << bit;
    dropped += 2;
  }
  EXPECT_EQ(server.packet_io->counters().rx_unauthenticated, dropped);
}

TEST(AuthenticatedIoTest, EveryCutAndEveryAddedByteIsNoticed) {
  End worker(Direction::kUp);
  End server(Direction::kDown);
  Datagram datagram = worker.sent(make_header(), make_payload(40));
  Datagram longer = datagram;
  longer.push_back(0);
  EXPECT_TRUE(server.taken({longer}).empty());
  while (!datagram.empty()) {
    datagram.pop_back();
    EXPECT_TRUE(server.taken({datagram}).empty()) << datagram.size();
  }
}

TEST(AuthenticatedIoTest, TheOtherDirectionIsNotAnswered) {
  End worker(Direction::kUp);
  const Datagram own = worker.sent(make_header(), make_payload());
  EXPECT_TRUE(worker.taken({own}).empty()) << "a reflected packet";
}

TEST(AuthenticatedIoTest, TagsOfAnotherJobOrKeyDoNotFit) {
  const std::string digits(64, 'a');
  const JobKeys keys = JobKeys::parse("1 " + digits + "\n65 " + digits + "\n", "test");
  End worker(Direction::kUp, keys);
  End server(Direction::kDown, keys);
  End stranger(Direction::kUp);
  // Jobs 1 and 65 have the same place in the table of derived keys; job 2 has no key.
  for (int repeat = 0; repeat < 3; ++repeat) {
    const Datagram first = worker.sent(make_header(1), make_payload());
    Datagram moved = first;
    moved[9] = 65;  // job
    EXPECT_EQ(server.taken({first, moved}).size(), 1U);
    EXPECT_EQ(server.taken({worker.sent(make_header(65), make_payload())}).size(), 1U);
    EXPECT_TRUE(server.taken({stranger.sent(make_header(1), make_payload())}).empty());
    EXPECT_TRUE(server.taken({stranger.sent(make_header(2), make_payload())}).empty());
  }
  EXPECT_FALSE(worker.packet_io->send(kPeer, make_header(2), make_payload()));
  EXPECT_EQ(worker.packet_io->counters().tx_errors, 1U);
}

TEST(AuthenticatedIoTest, APayloadMayChangeAfterTheFlush) {
  End worker(Direction::kUp);
  End server(Direction::kDown);
  auto payload = make_payload();
  for (std::uint8_t value = 0; value < 4; ++value) {
    payload[50] = value;
    for (const std::uint16_t job : {7, 8, 7}) {  // the digest is another one for another job
      EXPECT_TRUE(worker.packet_io->send(kPeer, make_header(job), payload));
    }
    worker.packet_io->flush();
    EXPECT_EQ(server.taken(worker.wire->take_sent()).size(), 3U);
  }
}

/// A burst of datagrams of jobs and lengths of all kinds, as thc-ps gets them.
std::vector<Datagram> mixed_burst(End& worker, std::size_t count) {
  std::vector<Datagram> burst;
  for (std::size_t i = 0; i < count; ++i) {
    const auto job = static_cast<std::uint16_t>(i % 3 == 0 ? 7 : i % 5);
    burst.push_back(worker.sent(make_header(job), make_payload(i % 4 == 0 ? i : 512)));
  }
  return burst;
}

TEST(AuthenticatedIoTest, InABurstEachPacketIsJudgedForItself) {
  End worker(Direction::kUp);
  End server(Direction::kDown);
  const std::vector<Datagram> good = mixed_burst(worker, 64);
  for (std::size_t bad = 0; bad < 3 * good.size(); ++bad) {
    std::vector<Datagram> burst = good;
    Datagram& changed = burst[bad % good.size()];
    switch (bad / good.size()) {
      case 0:
        changed.back() ^= 1;  // tag
        break;
      case 1:
        changed[sizeof(wire::Header) - 1] ^= 0x80;
        break;
      default:
        changed.resize(bad % (sizeof(wire::Header) + kTagBytes));  // too short to have both
    }
    std::vector<Datagram> expected;
    for (std::size_t i = 0; i < good.size(); ++i) {
      if (i != bad % good.size()) expected.emplace_back(good[i].begin(), good[i].end() - kTagBytes);
    }
    ASSERT_EQ(server.taken(burst), expected) << "bad " << bad;
    ASSERT_EQ(server.packet_io->counters().rx_unauthenticated, bad + 1);
  }
}

TEST(AuthenticatedIoTest, JobsOfOnePlaceInOneBurst) {
  End worker(Direction::kUp);
  End server(Direction::kDown);
  // Jobs 1, 65 and 129 drive each other out of one place, among packets of the burst that were hashed with its keys.
  std::vector<Datagram> burst;
  for (const std::uint16_t job : {1, 65, 1, 129, 65, 1, 1})
    burst.push_back(worker.sent(make_header(job), make_payload()));
  Datagram forged = burst[0];
  forged[9] = 65;  // job
  burst.push_back(forged);
  for (int repeat = 0; repeat < 3; ++repeat) EXPECT_EQ(server.taken(burst).size(), 7U);
}

TEST(AuthenticatedIoTest, APayloadSentInARowIsTaggedAsAlone) {
  End alone(Direction::kDown);
  End together(Direction::kDown);
  const auto result = make_payload(1024);
  const auto other = make_payload(300);
  std::vector<Datagram> expected;
  const auto send = [&](std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload) {
    expected.push_back(alone.sent(header, payload));
    EXPECT_TRUE(together.packet_io->send(kPeer, header, payload));
  };
  std::vector<std::uint8_t> whole(64, 3);
  for (std::uint16_t i = 0; i < 150; ++i) {
    auto header = make_header(i % 7 == 0 ? 65 : 1);  // of one place: each drives the other's keys out
    header[31] = static_cast<std::uint8_t>(i);
    std::copy(header.begin(), header.end(), whole.begin());
    whole[40] = static_cast<std::uint8_t>(i);
    switch (i / 5 % 4) {
      case 0:
        send(header, result);  // several times in a row: to all workers
        break;
      case 1:
        send(header, std::span(i % 2 == 0 ? result : other).first(i));
        break;
      case 2:
        send(std::span(whole).first(32 + i % 33), {});  // the payload behind the header
        break;
      default:
        send(header, {});
    }
  }
  together.packet_io->flush();
  EXPECT_EQ(together.wire->take_sent(), expected);
  together.packet_io->flush();
  EXPECT_TRUE(together.wire->take_sent().empty());
}

TEST(AuthenticatedIoTest, RefusesAHeaderThatIsTooShortOrTooLong) {
  End worker(Direction::kUp);
  const std::vector<std::uint8_t> header(PacketIo::kMaxHeaderBytes + 1);
  EXPECT_FALSE(worker.packet_io->send(kPeer, header, {}));
  EXPECT_FALSE(worker.packet_io->send(kPeer, std::span(header).first(sizeof(wire::Header) - 1), {}));
  EXPECT_TRUE(worker.packet_io->send(kPeer, std::span(header).first(PacketIo::kMaxHeaderBytes), {}));
  EXPECT_EQ(worker.packet_io->counters().tx_errors, 2U);
}

TEST(AuthenticatedIoTest, LeavesRoomForTheTag) {
  End worker(Direction::kUp);
  EXPECT_EQ(worker.packet_io->max_datagram_bytes(kPeer), worker.wire->max_datagram_bytes(kPeer) - kTagBytes);
  EXPECT_EQ(worker.packet_io->common_datagram_bytes(kPeer), worker.wire->common_datagram_bytes(kPeer) - kTagBytes);
}

std::string why_refused(const std::string& text) {
  try {
    JobKeys::parse(text, "keys");
  } catch (const ConfigurationError& error) {
    return error.what();
  }
  return "";
}

TEST(JobKeysTest, RefusesWhatIsNoKeyFile) {
  const std::string key = "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF";
  EXPECT_EQ(why_refused(key), "");
  EXPECT_EQ(why_refused("# mine\n\n  " + key + " \r\n"), "");
  EXPECT_EQ(why_refused("7 " + key + "\n8\t" + key), "");
  EXPECT_EQ(why_refused(key + " # of all jobs"), "");
  EXPECT_EQ(why_refused("7 " + key + "\t#mine\n # " + key + "\n8 " + key + "#"), "");
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"", "no key in it"},
      {"# nothing\n", "no key in it"},
      {key.substr(1), "line 1: expected 64 hexadecimal digits"},
      {key + "0", "line 1: expected 64"},
      {"x" + key.substr(1), "line 1: expected 64"},
      {"\n7 " + key + " 8", "line 2: expected 64"},
      {"7 # " + key, "line 1: expected 64"},
      {"65536 " + key, "0 to 65535"},
      {"-1 " + key, "0 to 65535"},
      {"7x " + key, "0 to 65535"},
      {key + "\n" + key, "line 2: a second key for all jobs: keep one"},
      {"7 " + key + "\n7 " + key, "line 2: a second key for job 7: keep one"},
      {"7 " + key + "\n" + key, "one or the other"},
  };
  for (const auto& [text, part] : wrong) {
    const std::string why = why_refused(text);
    EXPECT_NE(why.find(part), std::string::npos) << text << " -> " << why;
    EXPECT_NE(why.find("key file keys"), std::string::npos) << why;
    EXPECT_EQ(why.find(key.substr(2, 20)), std::string::npos) << "a key in a message: " << why;
  }
}

TEST(JobKeysTest, ReadsAPrivateFileOnly) {
  const std::string path = ::testing::TempDir() + "thc_keys_" + std::to_string(getpid());
  std::ofstream(path) << std::string(64, 'b') << "\n";
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  EXPECT_TRUE(JobKeys::read(path).derive(5, Direction::kUp));
  for (const mode_t mode : {0640, 0604, 0620, 0602}) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    try {
      JobKeys::read(path);
      FAIL() << "took a file of mode " << mode;
    } catch (const ConfigurationError& error) {
      EXPECT_NE(std::string(error.what()).find("chmod 600"), std::string::npos) << error.what();
    }
  }
  std::remove(path.c_str());
  EXPECT_THROW(JobKeys::read(path), ConfigurationError);
  EXPECT_THROW(JobKeys::read(::testing::TempDir()), ConfigurationError);
}

}  // namespace
}  // namespace thc::io::test
