// Load for one DPDK device under test: keeps a window of CODES packets (1024 codes of 4 bits) in flight and counts
// answers in a second. Against thc-ps it is worker 0 of a job of one; against `testpmd --forward-mode=io`, which
// returns every frame unchanged, it addresses the packets to itself. With several queues one thread loads all in turn,
// each with packets for the shard of its number. Prints one JSON line.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "io/address.h"
#include "io/authenticated_io.h"
#include "io/dpdk_io.h"
#include "thc/errors.h"
#include "thc/hello.h"
#include "thc/lookup_table.h"
#include "thc/wire_layout.h"

namespace thc {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint16_t kCodesPerPacket = 1024;
constexpr std::size_t kCodesBytes = kCodesPerPacket / 2;
constexpr std::array<std::uint16_t, 16> kTable{0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
constexpr auto kLossTimeout = std::chrono::milliseconds(200);

std::span<const std::uint8_t> bytes_of(const auto& object) {
  return {reinterpret_cast<const std::uint8_t*>(&object), sizeof object};
}

wire::Header make_header(wire::MessageType type) {
  wire::Header header{};
  header.version = wire::kVersion;
  header.message_type = static_cast<std::uint8_t>(type);
  header.code_bits = 4;
  header.value_bits = 8;
  header.num_workers = 1;
  header.job_id = 1;
  return header;
}

std::vector<std::uint8_t> make_hello() {
  return hello_payload({.job_id = 1,
                        .worker_id = 0,
                        .nonce = std::random_device{}() + 1ULL,
                        .cookie = 0,
                        .config = {.num_workers = 1,
                                   .value_bits = 8,
                                   .quorum = 1,
                                   .settings_hash = 0,
                                   .codes_per_packet = kCodesPerPacket,
                                   .slots_asked = 0,
                                   .table = LookupTable(4, kTable)}});
}

/// The slots of CODES packets; each has at most one packet in flight and counts its rounds.
class Load {
 public:
  Load(io::PacketIo& io, io::Endpoint target, wire::MessageType answer) : io_(io), target_(target), answer_(answer) {}

  /// Slots first, first + stride, ...
  void use_slots(std::uint32_t first, std::uint32_t count, std::uint32_t stride, std::uint32_t epoch) {
    first_slot_ = first;
    stride_ = stride;
    header_.epoch = epoch;
    header_.payload_count = kCodesPerPacket;
    rounds_.assign(count, 0);
    sent_at_.assign(count, {});
    for (std::uint32_t i = 0; i < count; ++i) {
      send(i, 1);
    }
    io_.flush();
  }

  /// One poll: every answer starts its slot's next round.
  void poll() {
    const std::size_t count = io_.receive(packets_);
    now_ = Clock::now();
    for (std::size_t i = 0; i < count; ++i) {
      take(packets_[i]);
    }
    if (count > 0) {
      io_.flush();
    }
  }

  void resend_lost() {
    for (std::uint32_t i = 0; i < rounds_.size(); ++i) {
      if (now_ - sent_at_[i] > kLossTimeout) {
        ++lost_;
        send(i, rounds_[i]);
      }
    }
    io_.flush();
  }

  std::uint64_t answers() const { return answers_; }
  std::uint64_t lost() const { return lost_; }
  std::uint64_t refused() const { return refused_; }

 private:
  void take(const io::RxPacket& packet) {
    wire::Header header;
    if (packet.size_bytes < sizeof header) {
      return;
    }
    std::memcpy(&header, packet.data, sizeof header);
    const std::uint32_t index = (header.slot - first_slot_) / stride_;
    if (header.message_type != static_cast<std::uint8_t>(answer_) || index >= rounds_.size()) {
      ++refused_;
      return;
    }
    if (header.round == rounds_[index]) {
      ++answers_;
      send(index, rounds_[index] + 1);
    }
  }

  void send(std::uint32_t index, std::uint32_t round) {
    header_.slot = first_slot_ + index * stride_;
    header_.round = round;
    rounds_[index] = round;
    sent_at_[index] = now_;
    io_.send(target_, bytes_of(header_), codes_);
  }

  io::PacketIo& io_;
  io::Endpoint target_;
  wire::MessageType answer_;
  wire::Header header_ = make_header(wire::MessageType::kCodes);
  std::array<std::uint8_t, kCodesBytes> codes_{};
  std::uint32_t first_slot_ = 0;
  std::uint32_t stride_ = 1;
  std::vector<std::uint32_t> rounds_;
  std::vector<Clock::time_point> sent_at_;
  std::array<io::RxPacket, 64> packets_;
  Clock::time_point now_ = Clock::now();
  std::uint64_t answers_ = 0;
  std::uint64_t lost_ = 0;
  std::uint64_t refused_ = 0;
};

struct Welcome {
  wire::WelcomePayload payload;
  std::uint32_t epoch;
};

Welcome join(io::PacketIo& io, io::Endpoint server, std::uint32_t shard) {
  wire::Header hello_header = make_header(wire::MessageType::kHello);
  hello_header.slot = shard;
  std::vector<std::uint8_t> hello = make_hello();
  std::array<io::RxPacket, 8> packets;
  const auto deadline = Clock::now() + std::chrono::seconds(10);
  while (Clock::now() < deadline) {
    io.send(server, bytes_of(hello_header), hello);
    io.flush();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    for (std::size_t i = io.receive(packets); i > 0; --i) {
      const io::RxPacket& packet = packets[i - 1];
      wire::Header header;
      Welcome welcome{};
      if (packet.size_bytes == sizeof header + sizeof(wire::ChallengePayload)) {
        std::memcpy(hello.data() + offsetof(wire::HelloPayload, cookie), packet.data + sizeof header,
                    sizeof(wire::ChallengePayload));
        continue;
      }
      if (packet.size_bytes != sizeof header + sizeof welcome.payload) {
        continue;
      }
      std::memcpy(&header, packet.data, sizeof header);
      std::memcpy(&welcome.payload, packet.data + sizeof header, sizeof welcome.payload);
      welcome.epoch = header.epoch;
      if (header.message_type == static_cast<std::uint8_t>(wire::MessageType::kWelcome)) {
        return welcome;
      }
      throw TransportError("thc-ps refused the job, message type " + std::to_string(header.message_type));
    }
  }
  throw DeadlineError("no answer from thc-ps within 10 s");
}

struct Settings {
  std::string mode = "server";
  std::string memif_socket;
  std::string key_file;
  std::uint32_t window = 256;
  std::uint16_t queues = 1;
  double seconds = 3;
};

/// One for each queue.
struct Queue {
  std::unique_ptr<io::PacketIo> io;
  std::unique_ptr<Load> load;
};

Queue start(std::unique_ptr<io::PacketIo> io, std::uint32_t number, const Settings& settings) {
  const std::uint32_t window = std::max(settings.window / settings.queues, 1U);
  if (settings.mode == "forward") {
    auto load = std::make_unique<Load>(*io, io->local(), wire::MessageType::kCodes);
    load->use_slots(number, window, settings.queues, 0);
    return {std::move(io), std::move(load)};
  }
  const io::Endpoint server{io::parse_ipv4("10.97.0.2"), static_cast<std::uint16_t>(wire::kUdpPort + number)};
  const Welcome welcome = join(*io, server, number);
  const std::uint32_t norm_slots = welcome.payload.norm_slots;
  const std::uint32_t first = norm_slots + (number + settings.queues - norm_slots % settings.queues) % settings.queues;
  const std::uint32_t codes_slots = (welcome.payload.slots - first + settings.queues - 1) / settings.queues;
  auto load = std::make_unique<Load>(*io, server, wire::MessageType::kAggregate);
  load->use_slots(first, std::min(window, codes_slots), settings.queues, welcome.epoch);
  return {std::move(io), std::move(load)};
}

int run(const Settings& settings) {
  const std::string mac = "02:74:68:63:00:01";
  io::DpdkConfig config;
  config.eal_args = {
      "--no-huge", "-m", "128",
      "--vdev=net_memif0,role=client,id=0,socket-abstract=yes,mac=" + mac + ",socket=" + settings.memif_socket};
  config.local = {io::parse_ipv4("10.97.0.1"), 40000};
  config.queues = settings.queues;
  if (settings.mode == "forward") {
    config.neighbours = {{.ip = config.local.ip.ipv4(), .mac = io::parse_mac(mac)}};
  }
  auto ios = io::make_dpdk_ios(config);
  std::this_thread::sleep_for(std::chrono::seconds(1));  // until the link is up
  std::vector<Queue> queues;
  for (auto& io : ios) {
    if (!settings.key_file.empty()) {
      io = std::make_unique<io::AuthenticatedIo>(std::move(io), io::JobKeys::read(settings.key_file),
                                                 io::Direction::kUp);
    }
    queues.push_back(start(std::move(io), static_cast<std::uint32_t>(queues.size()), settings));
  }
  const auto run_for = [&](double seconds) {
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    for (auto next_check = Clock::now(); Clock::now() < end;) {
      for (const Queue& queue : queues) queue.load->poll();
      if (Clock::now() > next_check) {
        for (const Queue& queue : queues) queue.load->resend_lost();
        next_check = Clock::now() + kLossTimeout / 4;
      }
    }
  };
  const auto sum = [&](std::uint64_t (Load::*counter)() const) {
    std::uint64_t total = 0;
    for (const Queue& queue : queues) total += ((*queue.load).*counter)();
    return total;
  };
  run_for(0.5);
  const std::uint64_t before = sum(&Load::answers);
  const auto start = Clock::now();
  run_for(settings.seconds);
  const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
  std::printf("{\"packets_per_s\": %.0f, \"resent\": %lu, \"refused\": %lu}\n",
              static_cast<double>(sum(&Load::answers) - before) / elapsed, sum(&Load::lost), sum(&Load::refused));
  return sum(&Load::answers) > before ? 0 : 1;
}

}  // namespace
}  // namespace thc

int main(int argc, char** argv) {
  CLI::App app{"Packets a second through a DPDK device under test, over memif"};
  thc::Settings settings;
  app.add_option("--mode", settings.mode, "what is under test: server (thc-ps) or forward (testpmd io)")
      ->check(CLI::IsMember({"server", "forward"}));
  app.add_option("--socket", settings.memif_socket, "abstract memif socket that the device under test serves")
      ->required();
  app.add_option("--key-file", settings.key_file, "of thc-ps");
  app.add_option("--window", settings.window, "packets in flight")->check(CLI::Range(1, 1024));
  app.add_option("--queues", settings.queues, "of the memif; thc-ps has as many threads")->check(CLI::Range(1, 16));
  app.add_option("--seconds", settings.seconds, "how long to measure")->check(CLI::Range(0.1, 60.0));
  CLI11_PARSE(app, argc, argv);
  try {
    return thc::run(settings);
  } catch (const thc::Error& error) {
    std::fprintf(stderr, "memif_load: %s\n", error.what());
    return 1;
  }
}
