#include "io/dpdk_device.h"

#include <fmt/format.h>
#include <rte_dev.h>
#include <rte_devargs.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mempool.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string_view>
#include <thread>

#include "thc/errors.h"

namespace thc::io {
namespace {

constexpr std::string_view kMemifDriver = "net_memif";
constexpr std::string_view kAfPacketDriver = "net_af_packet";
constexpr std::uint32_t kPoolCache = 256;
// Per queue, beyond its descriptors: for the caller, bursts, a handoff ring and the thread's cache.
constexpr std::uint32_t kSpareMbufs = 1024;
constexpr std::chrono::milliseconds kMemifPatience{5000};  // for a client to find its server
constexpr std::chrono::milliseconds kMemifHandshake{1000};
constexpr std::size_t kMinFrameRoomBytes = 2048;  // one memif or NIC buffer; smaller rooms disable the PMDs' fast paths

void check(int rc, const std::string& device, const char* step) {
  if (rc < 0) {
    throw DpdkUnavailableError(fmt::format("DPDK device \"{}\": {} failed: {}", device, step, rte_strerror(-rc)));
  }
}

std::size_t data_room_bytes(std::uint16_t mtu_bytes) {
  const std::size_t frame_bytes = mtu_bytes + RTE_ETHER_HDR_LEN + RTE_ETHER_CRC_LEN + 2 * RTE_VLAN_HLEN;
  const std::size_t room = std::max(frame_bytes, kMinFrameRoomBytes) + RTE_PKTMBUF_HEADROOM;
  if (room > UINT16_MAX) {
    throw ConfigurationError(fmt::format("mtu_bytes {} is too large for a DPDK packet buffer", mtu_bytes));
  }
  return room;
}

bool is_up(std::uint16_t port_id) noexcept {
  rte_eth_link link{};
  return rte_eth_link_get_nowait(port_id, &link) == 0 && link.link_status == RTE_ETH_LINK_UP;
}

bool is_memif_client(const rte_eth_dev_info& info) {
  const rte_devargs* devargs = rte_dev_devargs(info.device);
  const std::string_view args = devargs != nullptr && devargs->args != nullptr ? devargs->args : "";
  return std::string_view(info.driver_name) == kMemifDriver && args.find("role=server") == std::string_view::npos;
}

/// Keeps the pool of a device for its next user: some drivers still hold buffers after a stop.
rte_mempool* obtain_pool(std::uint16_t port_id, const DpdkConfig& config) {
  const std::uint32_t mbufs = std::uint32_t{config.queues} * (2U * kDpdkDescriptors + kSpareMbufs);
  const std::size_t room_bytes = data_room_bytes(config.mtu_bytes);
  const std::string name = fmt::format("thc{}_{}x{}", port_id, mbufs, room_bytes);
  if (rte_mempool* pool = rte_mempool_lookup(name.c_str()); pool != nullptr) {
    return pool;
  }
  rte_mempool* pool = rte_pktmbuf_pool_create(name.c_str(), mbufs, kPoolCache, 0,
                                              static_cast<std::uint16_t>(room_bytes), rte_eth_dev_socket_id(port_id));
  if (pool == nullptr) {
    const std::size_t mebibytes = (mbufs * (room_bytes + 256) >> 20) + 1;
    throw TransportError(fmt::format(
        "DPDK has no memory for {} packet buffers (about {} MiB): {}; give EAL more (-m <MiB>, or more huge "
        "pages) or ask for fewer threads",
        mbufs, mebibytes, rte_strerror(rte_errno)));
  }
  return pool;
}

}  // namespace

DpdkDevice::DpdkDevice(DpdkRuntime& runtime, const std::string& device, const DpdkConfig& config)
    : runtime_(runtime), device_(device), port_id_(runtime.claim(device)) {
  try {
    set_up(config);
  } catch (...) {
    runtime_.release(port_id_);
    throw;
  }
}

DpdkDevice::~DpdkDevice() { runtime_.release(port_id_); }

void DpdkDevice::set_up(const DpdkConfig& config) {
  rte_eth_dev_info info{};
  check(rte_eth_dev_info_get(port_id_, &info), device_, "reading its abilities");
  check_queues(config, info);
  pool_ = obtain_pool(port_id_, config);
  choose_checksums(info.driver_name, info.tx_offload_capa);
  configure(config, info);
  set_up_queues(config);
  start(info.driver_name);
  // A memif server whose client leaves during the handshake frees memory that its handler still uses (DPDK 22.11).
  const auto deadline = std::chrono::steady_clock::now() + kMemifHandshake;
  while (is_memif_client(info) && !is_up(port_id_) && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  rte_ether_addr address{};
  check(rte_eth_macaddr_get(port_id_, &address), device_, "reading its MAC address");
  std::memcpy(mac_.data(), address.addr_bytes, mac_.size());
}

void DpdkDevice::check_queues(const DpdkConfig& config, const rte_eth_dev_info& info) const {
  const int queues = std::min(info.max_rx_queues, info.max_tx_queues);
  // The kernel spreads frames over all queues of an af_packet device; a queue without a thread would lose its frames.
  const bool all_needed = std::string_view(info.driver_name) == kAfPacketDriver;
  if (config.queues > queues || (all_needed && config.queues < queues)) {
    throw ConfigurationError(fmt::format(
        "DPDK device \"{0}\" has {1} queue(s), but there is a thread for {2}: ask for as many threads, or set "
        "in its --vdev qpairs={2} (af_packet), queue_count={2} (af_xdp) or queues={2} (vhost, virtio_user)",
        device_, queues, config.queues));
  }
}

void DpdkDevice::configure(const DpdkConfig& config, const rte_eth_dev_info& info) {
  rte_eth_conf settings{};  // NOLINT(bugprone-invalid-enum-default-initialization): DPDK wants unused parts zeroed
  settings.rxmode.offloads = info.rx_offload_capa & (RTE_ETH_RX_OFFLOAD_IPV4_CKSUM | RTE_ETH_RX_OFFLOAD_UDP_CKSUM);
  settings.txmode.offloads = info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE;
  if (tx_flags_ != 0) {
    settings.txmode.offloads |= RTE_ETH_TX_OFFLOAD_IPV4_CKSUM | RTE_ETH_TX_OFFLOAD_UDP_CKSUM;
  }
  if (config.queues > 1 && (info.flow_type_rss_offloads & RTE_ETH_RSS_NONFRAG_IPV4_UDP) != 0) {
    settings.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
    settings.rx_adv_conf.rss_conf.rss_hf = RTE_ETH_RSS_NONFRAG_IPV4_UDP;
  }
  check(rte_eth_dev_configure(port_id_, config.queues, config.queues, &settings), device_, "configuring");
  const int rc = rte_eth_dev_set_mtu(port_id_, config.mtu_bytes);
  if (rc != 0 && rc != -ENOTSUP) {  // virtual devices accept any MTU that fits their buffers
    throw ConfigurationError(
        fmt::format("DPDK device \"{}\" takes no MTU of {} bytes ({}), but frames of at most {} bytes: give a smaller "
                    "MTU, on every host",
                    device_, config.mtu_bytes, rte_strerror(-rc), info.max_rx_pktlen));
  }
}

void DpdkDevice::set_up_queues(const DpdkConfig& config) {
  std::uint16_t rx = kDpdkDescriptors;
  std::uint16_t tx = kDpdkDescriptors;
  check(rte_eth_dev_adjust_nb_rx_tx_desc(port_id_, &rx, &tx), device_, "choosing ring sizes");
  const auto numa_node = static_cast<unsigned>(rte_eth_dev_socket_id(port_id_));
  for (std::uint16_t queue = 0; queue < config.queues; ++queue) {
    check(rte_eth_rx_queue_setup(port_id_, queue, rx, numa_node, nullptr, pool_), device_,
          "setting up a receive queue");
    check(rte_eth_tx_queue_setup(port_id_, queue, tx, numa_node, nullptr), device_, "setting up a transmit queue");
  }
}

/// A memif client fails to start until its server runs, which may start at the same time.
void DpdkDevice::start(std::string_view driver) {
  const auto deadline = std::chrono::steady_clock::now() + kMemifPatience;
  int rc = runtime_.start_port(port_id_);
  while (rc < 0 && driver == kMemifDriver && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    rc = runtime_.start_port(port_id_);
  }
  if (rc < 0 && driver == kMemifDriver) {
    throw DpdkUnavailableError(fmt::format(
        "memif device \"{}\" finds no server on its socket within {} ms: start the role=server side (thc-ps) "
        "first, and give both sides as many threads",
        device_, kMemifPatience.count()));
  }
  check(rc, device_, "starting");
}

/// memif is shared memory without a wire, so it needs no checksums.
void DpdkDevice::choose_checksums(std::string_view driver, std::uint64_t tx_offloads) noexcept {
  constexpr std::uint64_t kWanted = RTE_ETH_TX_OFFLOAD_IPV4_CKSUM | RTE_ETH_TX_OFFLOAD_UDP_CKSUM;
  const bool wanted = driver != kMemifDriver;
  const bool offload = wanted && (tx_offloads & kWanted) == kWanted;
  tx_flags_ = offload ? RTE_MBUF_F_TX_IPV4 | RTE_MBUF_F_TX_IP_CKSUM | RTE_MBUF_F_TX_UDP_CKSUM : 0;
  software_udp_checksum_ = wanted && !offload;
}

}  // namespace thc::io
