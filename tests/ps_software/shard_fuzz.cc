// libFuzzer target of the server's packet path: sequences of datagrams made from sound ones by overwriting bytes and
// cutting, or of raw bytes, from right and wrong addresses, with time passing. Sanitizers are the judge, and this: a
// server never answers a datagram with more datagrams than it has workers.
#include <fuzzer/FuzzedDataProvider.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "memory_io.h"
#include "shard.h"

namespace thc::ps {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::uint8_t kWorkers = 2;
constexpr std::uint16_t kCodes = 64;
constexpr std::uint32_t kSlots = 16;
constexpr std::uint32_t kNormSlots = 2;

template <typename T>
void append(Bytes& bytes, const T& value) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(&value);
  bytes.insert(bytes.end(), data, data + sizeof(value));
}

wire::Header make_header(wire::MessageType type, std::uint8_t worker) {
  wire::Header header{};
  header.version = wire::kVersion;
  header.message_type = static_cast<std::uint8_t>(type);
  header.code_bits = std::uint8_t{4};
  header.value_bits = std::uint8_t{8};
  header.worker_id = worker;
  header.num_workers = kWorkers;
  header.job_id = std::uint16_t{1};
  return header;
}

Bytes make_hello(std::uint8_t worker, std::uint64_t nonce, std::uint64_t training, std::uint8_t quorum, be64_t cookie) {
  std::array<std::uint16_t, 16> values;
  for (std::uint16_t i = 0; i < 16; ++i) values[i] = i;
  wire::HelloPayload payload{};
  payload.table_hash = LookupTable(4, values).hash();
  payload.nonce = nonce;
  payload.cookie = cookie;
  payload.run = training;
  payload.granularity = values.back();
  payload.codes_per_packet = kCodes;
  payload.quorum = quorum;
  Bytes bytes;
  append(bytes, make_header(wire::MessageType::kHello, worker));
  append(bytes, payload);
  for (const std::uint16_t value : values) append(bytes, be16_t(value));
  return bytes;
}

Bytes make_contribution(FuzzedDataProvider& data, std::uint8_t worker, std::uint32_t epoch, bool norm) {
  wire::Header header = make_header(norm ? wire::MessageType::kNorm : wire::MessageType::kCodes, worker);
  const auto count = data.ConsumeIntegralInRange<std::uint16_t>(1, norm ? kCodes / 4 : kCodes);
  header.flags = data.ConsumeBool() ? wire::kFlagRetransmit : std::uint8_t{0};
  header.payload_count = count;
  header.epoch = epoch;
  header.round = data.ConsumeIntegralInRange<std::uint32_t>(1, 4);
  header.slot = norm ? data.ConsumeIntegralInRange<std::uint32_t>(0, kNormSlots - 1)
                     : data.ConsumeIntegralInRange<std::uint32_t>(kNormSlots, kSlots - 1);
  Bytes bytes;
  append(bytes, header);
  bytes.resize(bytes.size() + (norm ? 4 * count : (count + 1) / 2), data.ConsumeIntegral<std::uint8_t>());
  return bytes;
}

Bytes make_notice(wire::MessageType type, std::uint8_t worker, std::uint32_t epoch) {
  wire::Header header = make_header(type, worker);
  header.epoch = epoch;
  Bytes bytes;
  append(bytes, header);
  return bytes;
}

/// Processes that want a place: their nonces.
constexpr std::uint64_t kNonces = 2;
/// Cookies of the last CHALLENGE to each process of each worker.
using FoundCookies = std::array<std::array<be64_t, kNonces>, kWorkers>;

Bytes make_datagram(FuzzedDataProvider& data, std::uint8_t worker, std::uint32_t epoch, const FoundCookies& cookies) {
  switch (data.ConsumeIntegralInRange<int>(0, 5)) {
    case 0: {
      const auto nonce = data.ConsumeIntegralInRange<std::uint64_t>(1, kNonces);
      const auto training = data.ConsumeIntegralInRange<std::uint64_t>(0, 1);
      return make_hello(worker, nonce, training, data.ConsumeIntegralInRange<std::uint8_t>(1, kWorkers),
                        cookies[worker][nonce - 1]);
    }
    case 1:
      return make_notice(wire::MessageType::kGoodbye, worker, epoch);
    case 4:
      return make_notice(wire::MessageType::kAlive, worker, epoch);
    case 2:
      return make_contribution(data, worker, epoch, true);
    case 3:
      return make_contribution(data, worker, epoch, false);
    default:
      return data.ConsumeBytes<std::uint8_t>(data.ConsumeIntegralInRange<std::size_t>(0, 200));
  }
}

void spoil(FuzzedDataProvider& data, Bytes& bytes) {
  for (int i = data.ConsumeIntegralInRange<int>(0, 3); i > 0 && !bytes.empty(); --i) {
    bytes[data.ConsumeIntegralInRange<std::size_t>(0, bytes.size() - 1)] = data.ConsumeIntegral<std::uint8_t>();
  }
  if (data.ConsumeIntegralInRange<int>(0, 7) == 0) bytes.resize(data.ConsumeIntegralInRange<std::size_t>(0, 300));
}

/// The epoch of the last WELCOME among the answers, else the one before.
std::uint32_t newest_epoch(const std::vector<MemoryIo::Datagram>& answers, std::uint32_t epoch) {
  for (const auto& answer : answers) {
    wire::Header header;
    std::memcpy(&header, answer.bytes.data(), sizeof(header));
    if (header.message_type == static_cast<std::uint8_t>(wire::MessageType::kWelcome)) epoch = header.epoch;
  }
  return epoch;
}

io::Endpoint address(int worker) { return {0x7f000001, static_cast<std::uint16_t>(5000 + worker)}; }

/// Asks for the cookies of all workers' HELLOs from their own addresses.
FoundCookies find_cookies(Shard& shard, MemoryIo& packet_io, TimePoint now) {
  FoundCookies cookies{};
  for (std::uint8_t worker = 0; worker < kWorkers; ++worker) {
    for (std::uint64_t nonce = 1; nonce <= kNonces; ++nonce) {
      packet_io.deliver(address(worker), make_hello(worker, nonce, 0, kWorkers, {}));
      shard.poll(now);
      const auto answers = packet_io.take_sent();
      if (answers.size() != 1 || answers[0].bytes.size() != sizeof(wire::Header) + sizeof(be64_t)) std::abort();
      std::memcpy(&cookies[worker][nonce - 1], answers[0].bytes.data() + sizeof(wire::Header), sizeof(be64_t));
    }
  }
  return cookies;
}

constexpr io::Endpoint kRoot{0x7f000001, 48865};

/// A root's possible answer to a leaf's last packet.
Bytes make_root_datagram(FuzzedDataProvider& data, const Bytes& to_root, std::uint16_t shards) {
  static constexpr std::array kTypes{wire::MessageType::kWelcome,   wire::MessageType::kChallenge,
                                     wire::MessageType::kError,     wire::MessageType::kAggregate,
                                     wire::MessageType::kStraggler, wire::MessageType::kProbe,
                                     wire::MessageType::kMaxNorm};
  if (to_root.size() < sizeof(wire::Header)) return {};
  wire::Header header;
  std::memcpy(&header, to_root.data(), sizeof(header));
  const wire::MessageType type = kTypes[data.ConsumeIntegralInRange<std::size_t>(0, kTypes.size() - 1)];
  header.message_type = static_cast<std::uint8_t>(type);
  header.flags = std::uint8_t{0};
  Bytes payload;
  if (type == wire::MessageType::kWelcome) {
    header.epoch = data.ConsumeIntegralInRange<std::uint32_t>(1, 3);
    wire::WelcomePayload shape{};
    shape.slots = data.ConsumeBool() ? kSlots : data.ConsumeIntegralInRange<std::uint32_t>(0, 40);
    shape.norm_slots = norm_slots_of(shape.slots);
    shape.shards = shards;
    shape.codes_multiple = std::uint16_t{1};
    append(payload, shape);
  } else if (type == wire::MessageType::kChallenge) {
    append(payload, be64_t(data.ConsumeIntegral<std::uint64_t>()));
  } else if (type == wire::MessageType::kError) {
    wire::ErrorPayload error{};
    error.reason = data.ConsumeIntegralInRange<std::uint16_t>(0, 13);
    error.worker_bitmap = std::uint64_t{1};
    append(payload, error);
  } else if (type == wire::MessageType::kAggregate || type == wire::MessageType::kMaxNorm) {
    header.contributions = std::uint8_t{2};
    payload.resize(std::size_t{header.payload_count} * (type == wire::MessageType::kMaxNorm ? 4 : 1));
  }
  Bytes bytes;
  append(bytes, header);
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

void run(FuzzedDataProvider& data) {
  MemoryIo packet_io;
  JobLimits limits{.share = {.shard = 0, .shards = data.ConsumeIntegralInRange<std::uint16_t>(1, 3)},
                   .max_jobs = 3,
                   .slots = kSlots,
                   .max_memory_bytes = 1 << 20,
                   .idle_timeout = std::chrono::seconds(5)};
  const std::uint16_t shards = limits.share.shards;
  if (data.ConsumeBool()) limits.leaf = make_leaf(kRoot, 0, {"0", "1"});
  Shard shard(limits, packet_io);
  Bytes to_root;
  TimePoint now{std::chrono::hours(1)};
  std::uint32_t epoch = 0;
  const FoundCookies cookies = find_cookies(shard, packet_io, now);
  while (data.remaining_bytes() > 0) {
    std::size_t delivered = 0;
    for (int burst = data.ConsumeIntegralInRange<int>(1, 5); burst > 0; --burst, ++delivered) {
      const auto worker = data.ConsumeIntegralInRange<std::uint8_t>(0, kWorkers - 1);
      const auto sender = data.ConsumeIntegralInRange<int>(0, 9) == 0 ? kWorkers : worker;
      const bool from_root = limits.leaf && data.ConsumeBool();
      Bytes bytes = from_root ? make_root_datagram(data, to_root, shards) : make_datagram(data, worker, epoch, cookies);
      spoil(data, bytes);
      packet_io.deliver(from_root ? kRoot : address(sender), std::move(bytes));
    }
    shard.poll(now);
    const auto answers = packet_io.take_sent();
    if (answers.size() > delivered * wire::kMaxWorkers) std::abort();
    epoch = newest_epoch(answers, epoch);
    for (const auto& answer : answers) {
      if (answer.peer == kRoot) to_root = answer.bytes;
    }
    now += std::chrono::milliseconds(data.ConsumeIntegralInRange<int>(0, 15) == 0 ? 2600 : 1);
    shard.run_timers(now);
  }
}

}  // namespace
}  // namespace thc::ps

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  FuzzedDataProvider data(bytes, size);
  thc::ps::run(data);
  return 0;
}
