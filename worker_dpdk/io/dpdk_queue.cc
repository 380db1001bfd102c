#include "io/dpdk_queue.h"

#include <rte_ethdev.h>
#include <sched.h>

#include <algorithm>
#include <chrono>

#include "io/frame.h"

namespace thc::io {
namespace {

// Each frame takes a while, and drivers free frames in batches. A ring stuck for kFruitless has a dead peer.
constexpr int kFullRingSpins = 64;
constexpr std::chrono::milliseconds kFruitless{20};

}  // namespace

DpdkQueue::~DpdkQueue() { rte_pktmbuf_free_bulk(to_send_.data(), static_cast<unsigned>(waiting_)); }

std::size_t DpdkQueue::receive(std::span<rte_mbuf*> frames) noexcept {
  const auto wanted = static_cast<std::uint16_t>(std::min(frames.size(), kBurst));
  return rte_eth_rx_burst(port_id_, queue_, frames.data(), wanted);
}

void DpdkQueue::transmit(rte_mbuf* frame, IoCounters& counters) noexcept {
  to_send_[waiting_++] = frame;
  if (waiting_ == kBurst) {
    flush(counters);
  }
}

void DpdkQueue::flush(IoCounters& counters) noexcept {
  std::size_t done = 0;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < waiting_; ++i) {
    bytes += to_send_[i]->pkt_len - sizeof(UdpFrameHeader);  // the driver may free a frame as soon as it has it
  }
  int full_in_a_row = 0;
  for (std::chrono::steady_clock::time_point full_since; done < waiting_;) {
    const std::uint16_t sent =
        rte_eth_tx_burst(port_id_, queue_, to_send_.data() + done, static_cast<std::uint16_t>(waiting_ - done));
    done += sent;
    if (sent > 0) {
      full_in_a_row = 0;
      dead_ = false;
    } else if (++full_in_a_row == kFullRingSpins) {
      full_since = std::chrono::steady_clock::now();
    } else if (full_in_a_row > kFullRingSpins) {
      // After one fruitless wait, later frames are tried once.
      dead_ = dead_ || std::chrono::steady_clock::now() - full_since > kFruitless;
      if (dead_) break;
      sched_yield();  // the peer of a virtual device may need this core
    }
  }
  for (std::size_t i = done; i < waiting_; ++i) {
    bytes -= to_send_[i]->pkt_len - sizeof(UdpFrameHeader);
  }
  rte_pktmbuf_free_bulk(to_send_.data() + done, static_cast<unsigned>(waiting_ - done));
  counters.tx_no_buffer += waiting_ - done;
  counters.tx_packets += done;
  counters.tx_bytes += bytes;
  waiting_ = 0;
}

}  // namespace thc::io
