// A session neither crashes nor accepts a result that does not fit, with any answers of servers. libFuzzer target.
//
// Input: a sequence of (length u16 be, flags u8, bytes). Flags select how much of a valid header is put in front, so
// that the fuzzer gets past the first checks: bit 0 a valid header of a packet in flight, bit 1 a foreign address, bit
// 2 time passes.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "engine_fixture.h"

namespace thc::testing {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

Datagram next_datagram(std::span<const std::uint8_t>& input, std::uint8_t flags, const Datagram& in_flight) {
  const std::size_t size = std::min<std::size_t>(input.size(), 200);
  Datagram datagram(input.begin(), input.begin() + static_cast<std::ptrdiff_t>(size));
  if ((flags & 1U) != 0 && datagram.size() >= 2) {
    // A good header with one byte changed, and the input as payload.
    Datagram whole(in_flight.begin(), in_flight.begin() + sizeof(wire::Header));
    whole[datagram[0] % sizeof(wire::Header)] = datagram[1];
    whole.insert(whole.end(), datagram.begin() + 2, datagram.end());
    datagram = std::move(whole);
  }
  return datagram;
}

void run(std::span<const std::uint8_t> input) {
  SessionConfig config = test_config(4, 2);
  config.loss_tolerant = !input.empty() && (input[0] & 1U) != 0;
  config = resolve(config, 65507);
  MemoryIo packet_io;
  MemoryServer server(pool_config(config), config.table);
  TimePoint now{std::chrono::hours(1)};
  SessionState state(config.servers.size());
  SessionEngine engine(config, packet_io, state, 1, now);
  engine.step(now);
  for (const Datagram& hello : packet_io.take_sent()) {
    server.handle(hello,
                  [&](std::uint8_t, Datagram answer) { packet_io.arriving.push_back({kServer, std::move(answer)}); });
  }
  engine.step(now);
  require(engine.connected());
  Push push(3, 64 * 12 + 7, config, 1);
  std::vector<float> norms(20, 1.0F);
  std::vector<float> max_norms(20);
  const auto norm_stage = Operation::norms(3, norms, max_norms, 16);
  engine.submit(norm_stage, now);
  engine.submit(push.operation, now);
  engine.step(now);
  Datagram in_flight = packet_io.take_sent().back();
  in_flight[1] = static_cast<std::uint8_t>(wire::MessageType::kAggregate);

  while (input.size() >= 3) {
    const std::size_t length = (std::size_t{input[0]} << 8 | input[1]) % 256;
    const std::uint8_t flags = input[2];
    input = input.subspan(3);
    auto part = input.first(std::min(length, input.size()));
    input = input.subspan(part.size());
    const io::Endpoint from = (flags & 2U) != 0 ? io::Endpoint{1, 1} : kServer;
    packet_io.arriving.push_back({from, next_datagram(part, flags, in_flight)});
    now += (flags & 4U) != 0 ? Duration(100'000) : Duration(10);
    engine.step(now);
    packet_io.take_sent();
    if (push.operation->done() && !push.operation->failure()) {
      for (const std::uint8_t contributions : push.contributions) require(contributions == 0 || contributions == 2);
    }
  }
  engine.end({Failure::Kind::kTransport, "the session is closed"});
  require(push.operation->done() && norm_stage->done());
}

}  // namespace
}  // namespace thc::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  thc::testing::run({data, size});
  return 0;
}
