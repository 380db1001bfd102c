// Nothing that arrives is handed on without the tag of its job's key, whatever its length. libFuzzer target.
//
// Input: flags u8, then a datagram. Flags bit 0: the datagram gets a right tag, bit 1: then a byte is changed.
// Bits 2 and 3: so many genuine datagrams before and behind it in the burst.
#include <sodium.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "io/authenticated_io.h"
#include "thc/wire_layout.h"
#include "worker_dpdk/session/memory_network.h"

namespace thc::io {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void add_tag(testing::Datagram& datagram) {
  const auto header = testing::header_of(datagram);
  const auto keys = JobKeys(JobKey{1}).derive(header.job_id, Direction::kUp);
  const auto tag = make_tag(*keys, datagram.data(), digest_payload(*keys, std::span(datagram).subspan(sizeof header)));
  datagram.insert(datagram.end(), tag.begin(), tag.end());
}

void run(std::span<const std::uint8_t> input) {
  static auto* const wire = new testing::MemoryIo;
  static auto* const packet_io =
      new AuthenticatedIo(std::unique_ptr<PacketIo>(wire), JobKeys(JobKey{1}), Direction::kDown);
  if (input.empty()) return;
  const unsigned flags = input[0];
  testing::Datagram datagram(input.begin() + 1, input.end());
  const bool whole = datagram.size() >= sizeof(wire::Header);
  const bool tagged = (flags & 1U) != 0 && whole;
  if (tagged) {
    add_tag(datagram);
    if ((flags & 2U) != 0) datagram[flags / 4 % datagram.size()] ^= 1U;
  }
  datagram.shrink_to_fit();
  const std::size_t neighbours = flags >> 2 & 3U;
  testing::Datagram genuine(sizeof(wire::Header) + flags);
  if (whole)
    std::copy_n(datagram.begin() + offsetof(wire::Header, job_id), 2, genuine.begin() + offsetof(wire::Header, job_id));
  add_tag(genuine);
  genuine.shrink_to_fit();
  for (std::size_t i = 0; i < neighbours; ++i) wire->arriving.push_back({{1, 1}, genuine});
  wire->arriving.push_back({{1, 1}, datagram});
  for (std::size_t i = 0; i < neighbours; ++i) wire->arriving.push_back({{1, 1}, genuine});
  std::array<RxPacket, 8> packets;
  const std::size_t count = packet_io->receive(packets);
  const bool taken = tagged && (flags & 2U) == 0;
  require(count == 2 * neighbours + (taken ? 1U : 0U));  // 2^-64 for the rest
  if (taken) require(packets[neighbours].size_bytes + kTagBytes == datagram.size());
}

}  // namespace
}  // namespace thc::io

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  thc::io::run({data, size});
  return 0;
}
