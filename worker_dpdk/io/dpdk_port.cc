#include "io/dpdk_port.h"

#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mempool.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <thread>

#include "io/frame.h"
#include "thc/errors.h"

namespace thc::io {
namespace {

constexpr std::string_view kMemifDriver = "net_memif";
constexpr int kFullRingSpins = 64;
constexpr int kFullRingYields = 16;
constexpr std::uint32_t kPoolCache = 256;
constexpr std::size_t kMinFrameRoomBytes = 2048;  // one memif or NIC buffer; smaller rooms leave the PMDs' fast paths

void check(int rc, const std::string& device, const char* step) {
  if (rc < 0) {
    throw DpdkUnavailableError("DPDK device \"" + device + "\": " + step + " failed: " + rte_strerror(-rc));
  }
}

std::size_t data_room_bytes(std::uint16_t mtu_bytes) {
  const std::size_t frame_bytes = mtu_bytes + RTE_ETHER_HDR_LEN + RTE_ETHER_CRC_LEN + 2 * RTE_VLAN_HLEN;
  const std::size_t room = std::max(frame_bytes, kMinFrameRoomBytes) + RTE_PKTMBUF_HEADROOM;
  if (room > UINT16_MAX) {
    throw ConfigurationError("mtu_bytes " + std::to_string(mtu_bytes) + " is too large for a DPDK packet buffer");
  }
  return room;
}

}  // namespace

rte_mempool* obtain_pool(std::uint16_t first_port, std::uint32_t mbufs, std::uint16_t mtu_bytes) {
  const std::size_t room_bytes = data_room_bytes(mtu_bytes);
  // Kept for the next user of the device: after a stop some drivers still hold buffers of it.
  const std::string name =
      "thc" + std::to_string(first_port) + "_" + std::to_string(mbufs) + "x" + std::to_string(room_bytes);
  if (rte_mempool* pool = rte_mempool_lookup(name.c_str()); pool != nullptr) {
    return pool;
  }
  rte_mempool* pool = rte_pktmbuf_pool_create(name.c_str(), mbufs, kPoolCache, 0,
                                              static_cast<std::uint16_t>(room_bytes), SOCKET_ID_ANY);
  if (pool == nullptr) {
    const std::size_t mebibytes = (mbufs * (room_bytes + 256) >> 20) + 1;
    throw TransportError("DPDK has no memory for " + std::to_string(mbufs) + " packet buffers (about " +
                         std::to_string(mebibytes) + " MiB): " + rte_strerror(rte_errno) +
                         "; give EAL more (-m <MiB>, or more huge pages) or ask for fewer mbufs or descriptors");
  }
  return pool;
}

DpdkPort::DpdkPort(DpdkRuntime& runtime, const std::string& device, const DpdkConfig& config, rte_mempool* pool)
    : runtime_(runtime), device_(device), port_id_(runtime.claim(device)) {
  try {
    configure(config, pool);
  } catch (...) {
    rte_eth_dev_stop(port_id_);  // does nothing unless it runs
    runtime_.release(port_id_);
    throw;
  }
}

DpdkPort::~DpdkPort() {
  rte_pktmbuf_free_bulk(queue_.data(), static_cast<unsigned>(queued_));
  rte_eth_dev_stop(port_id_);
  runtime_.release(port_id_);
}

void DpdkPort::configure(const DpdkConfig& config, rte_mempool* pool) {
  rte_eth_dev_info info{};
  check(rte_eth_dev_info_get(port_id_, &info), device_, "reading its abilities");
  choose_checksums(config, info.driver_name, info.tx_offload_capa);
  rte_eth_conf settings{};  // NOLINT(bugprone-invalid-enum-default-initialization): DPDK wants unused parts zeroed
  settings.rxmode.offloads = info.rx_offload_capa & (RTE_ETH_RX_OFFLOAD_IPV4_CKSUM | RTE_ETH_RX_OFFLOAD_UDP_CKSUM);
  settings.txmode.offloads = info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE;
  if (tx_flags_ != 0) {
    settings.txmode.offloads |= RTE_ETH_TX_OFFLOAD_IPV4_CKSUM | RTE_ETH_TX_OFFLOAD_UDP_CKSUM;
  }
  check(rte_eth_dev_configure(port_id_, 1, 1, &settings), device_, "configuring");
  const int mtu_rc = rte_eth_dev_set_mtu(port_id_, config.mtu_bytes);
  if (mtu_rc != -ENOTSUP) {  // virtual devices take what fits their buffers
    check(mtu_rc, device_, "setting the MTU");
  }
  std::uint16_t rx = config.rx_descriptors;
  std::uint16_t tx = config.tx_descriptors;
  check(rte_eth_dev_adjust_nb_rx_tx_desc(port_id_, &rx, &tx), device_, "choosing ring sizes");
  const auto socket = static_cast<unsigned>(SOCKET_ID_ANY);
  check(rte_eth_rx_queue_setup(port_id_, 0, rx, socket, nullptr, pool), device_, "setting up the receive queue");
  check(rte_eth_tx_queue_setup(port_id_, 0, tx, socket, nullptr), device_, "setting up the transmit queue");
  start(info.driver_name, std::chrono::milliseconds(config.start_timeout_ms));
  rte_ether_addr address{};
  check(rte_eth_macaddr_get(port_id_, &address), device_, "reading its MAC address");
  std::memcpy(mac_.data(), address.addr_bytes, mac_.size());
}

/// A memif client fails to start until its server is there, which may be starting at the same time.
void DpdkPort::start(const std::string& driver, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  int rc = rte_eth_dev_start(port_id_);
  while (rc < 0 && driver == kMemifDriver && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    rc = rte_eth_dev_start(port_id_);
  }
  if (rc < 0 && driver == kMemifDriver) {
    throw DpdkUnavailableError("memif device \"" + device_ + "\" finds no server on its socket within " +
                               std::to_string(timeout.count()) + " ms: start the role=server side (thc-ps) first");
  }
  check(rc, device_, "starting");
}

void DpdkPort::choose_checksums(const DpdkConfig& config, std::string_view driver, std::uint64_t tx_offloads) noexcept {
  constexpr std::uint64_t kWanted = RTE_ETH_TX_OFFLOAD_IPV4_CKSUM | RTE_ETH_TX_OFFLOAD_UDP_CKSUM;
  const bool shared_memory = driver == kMemifDriver;
  const bool wanted =
      config.udp_checksum == UdpChecksum::kAlways || (config.udp_checksum == UdpChecksum::kAuto && !shared_memory);
  const bool offload = wanted && (tx_offloads & kWanted) == kWanted;
  tx_flags_ = offload ? RTE_MBUF_F_TX_IPV4 | RTE_MBUF_F_TX_IP_CKSUM | RTE_MBUF_F_TX_UDP_CKSUM : 0;
  software_udp_checksum_ = wanted && !offload;
}

std::size_t DpdkPort::receive(std::span<rte_mbuf*> frames) noexcept {
  const auto wanted = static_cast<std::uint16_t>(std::min(frames.size(), kBurst));
  return rte_eth_rx_burst(port_id_, 0, frames.data(), wanted);
}

void DpdkPort::transmit(rte_mbuf* frame, IoCounters& counters) noexcept {
  queue_[queued_++] = frame;
  if (queued_ == kBurst) {
    flush(counters);
  }
}

void DpdkPort::flush(IoCounters& counters) noexcept {
  std::size_t done = 0;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < queued_; ++i) {
    bytes += queue_[i]->pkt_len - sizeof(UdpFrameHeader);  // the driver may free a frame as soon as it has it
  }
  for (int attempt = 0; done < queued_ && attempt < kFullRingSpins + kFullRingYields;) {
    const std::uint16_t sent =
        rte_eth_tx_burst(port_id_, 0, queue_.data() + done, static_cast<std::uint16_t>(queued_ - done));
    done += sent;
    if (sent == 0 && ++attempt >= kFullRingSpins) {
      sched_yield();  // the peer of a virtual device may need this core
    }
  }
  for (std::size_t i = done; i < queued_; ++i) {
    bytes -= queue_[i]->pkt_len - sizeof(UdpFrameHeader);
  }
  rte_pktmbuf_free_bulk(queue_.data() + done, static_cast<unsigned>(queued_ - done));
  counters.tx_no_buffer += queued_ - done;
  counters.tx_packets += done;
  counters.tx_bytes += bytes;
  queued_ = 0;
}

}  // namespace thc::io
