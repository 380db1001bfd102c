#include "session/inquiry.h"

#include <algorithm>
#include <array>
#include <optional>

#include "session/messages.h"
#include "thc/join.h"
#include "thc/kernel_random.h"

namespace thc {
namespace {

constexpr int kLongestPace = 4;  // in units of the first pace

struct Asked {
  io::Endpoint server;
  Join join;
  Presence presence = Presence::kSilent;
};

Presence presence_of(const ServerMessage& answer) noexcept {
  if (answer.type != wire::MessageType::kError) {
    return answer.type == wire::MessageType::kChallenge ? Presence::kThere : Presence::kOther;
  }
  const auto error = payload_of<wire::ErrorPayload>(answer);
  const bool is_leaving = std::uint16_t{error.reason} == static_cast<std::uint16_t>(wire::ErrorReason::kDraining);
  return is_leaving ? Presence::kLeaving : Presence::kOther;
}

void take(const io::RxPacket& packet, const SessionConfig& config, std::vector<Asked>& servers) noexcept {
  const auto message = parse_server_message({packet.data, packet.size_bytes}, config);
  if (!message) {
    return;
  }
  for (Asked& asked : servers) {
    if (asked.server == packet.from && asked.join.is_awaited(message->header)) {
      asked.presence = presence_of(*message);
    }
  }
}

bool is_silent(const Asked& asked) noexcept { return asked.presence == Presence::kSilent; }

TimePoint say_hello(std::vector<Asked>& servers, io::PacketIo& packet_io, TimePoint now) noexcept {
  TimePoint next = TimePoint::max();
  for (Asked& asked : servers) {
    if (!is_silent(asked)) {
      continue;
    }
    if (asked.join.is_hello_due(now)) {
      const Join::Message hello = asked.join.say_hello(now);
      packet_io.send(asked.server, io::bytes_of(hello.header), hello.payload);
    }
    next = std::min(next, asked.join.next_hello());
  }
  packet_io.flush();
  return next;
}

}  // namespace

std::vector<Presence> ask_servers(const SessionConfig& config, io::PacketIo& packet_io, Duration timeout,
                                  Duration pace) {
  const TimePoint start = Clock::now();
  const Hello hello = hello_of(config, random_uint64());
  std::vector<Asked> servers;
  for (const io::Endpoint server : config.servers) {
    servers.push_back({.server = server, .join = Join(hello, 0, {.first = pace, .last = kLongestPace * pace}, start)});
  }
  std::array<io::RxPacket, 64> received{};
  for (TimePoint now = start; now < start + timeout && std::ranges::any_of(servers, is_silent); now = Clock::now()) {
    const TimePoint next = std::min(say_hello(servers, packet_io, now), start + timeout);
    packet_io.wait(std::max(Duration(0), std::chrono::ceil<Duration>(next - now)));
    const std::size_t count = packet_io.receive(received);
    for (std::size_t i = 0; i < count; ++i) {
      take(received[i], config, servers);
    }
  }
  std::vector<Presence> presences;
  for (const Asked& asked : servers) {
    presences.push_back(asked.presence);
  }
  return presences;
}

}  // namespace thc
