#include "io/dpdk_io.h"

#include <rte_cycles.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "io/dpdk_module.h"
#include "io/dpdk_port.h"
#include "io/dpdk_runtime.h"
#include "io/frame.h"
#include "io/neighbour_table.h"
#include "thc/errors.h"

namespace thc::io {
namespace {

constexpr std::size_t kFrameHeaderBytes = sizeof(UdpFrameHeader);
constexpr std::uint32_t kSpareMbufs = 1024;  // handed to the caller, in bursts, in the pool's per-thread cache

std::uint32_t network_mask(std::uint8_t prefix_length) noexcept {
  return prefix_length == 0 ? 0 : ~std::uint32_t{0} << (32 - prefix_length);
}

std::uint16_t random_port() {
  std::random_device random;
  return static_cast<std::uint16_t>(49152 + random() % 16384);
}

/// Gives a thread a cache of free buffers for as long as it lives. There are RTE_MAX_LCORE of them in a process;
/// without one the pool still works, slower.
class EalThread {
 public:
  EalThread() noexcept : registered_(rte_lcore_id() == LCORE_ID_ANY && rte_thread_register() == 0) {}
  ~EalThread() {
    if (registered_) {
      rte_thread_unregister();
    }
  }
  EalThread(const EalThread&) = delete;
  EalThread& operator=(const EalThread&) = delete;

 private:
  const bool registered_;
};

class DpdkIo final : public PacketIo {
 public:
  DpdkIo(DpdkRuntime& runtime, const std::vector<std::string>& devices, const DpdkConfig& config);
  ~DpdkIo() override;

  std::size_t receive(std::span<RxPacket> packets) noexcept override;
  bool send(Endpoint to, std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload,
            std::span<const std::uint8_t> trailer) noexcept override;
  void flush() noexcept override;
  void wait(std::chrono::microseconds timeout) noexcept override;
  void wake() noexcept override {}  // wait() polls and never sleeps for long
  Endpoint local() const noexcept override { return config_.local; }
  std::size_t max_datagram_bytes(Endpoint /*to*/) const noexcept override {
    return config_.mtu_bytes - kIpUdpHeaderBytes;
  }
  std::size_t receive_buffer_bytes() const noexcept override {
    return std::size_t{config_.rx_descriptors} * config_.mtu_bytes;
  }
  const IoCounters& counters() const noexcept override { return counters_; }

 private:
  void add_configured_neighbours();
  bool accept(rte_mbuf* mbuf, std::size_t port_index, RxPacket& packet) noexcept;
  void handle_arp(std::span<const std::uint8_t> frame, std::size_t port_index) noexcept;
  void learn(std::uint32_t ip, const MacAddress& mac, std::size_t port_index) noexcept;
  Neighbour* resolve(std::uint32_t ip) noexcept;
  void send_arp(const ArpFrame& frame, DpdkPort& port) noexcept;
  void write_checksum(rte_mbuf* mbuf, UdpFrameHeader* frame, const DpdkPort& port) const noexcept;

  DpdkConfig config_;
  rte_mempool* pool_ = nullptr;
  std::vector<std::unique_ptr<DpdkPort>> ports_;
  NeighbourTable neighbours_;
  IoCounters counters_;
  std::array<rte_mbuf*, DpdkPort::kBurst> received_{};  // what the last receive() handed out
  std::size_t received_count_ = 0;
  std::size_t next_port_ = 0;
  std::uint32_t idle_polls_ = 0;
};

DpdkIo::DpdkIo(DpdkRuntime& runtime, const std::vector<std::string>& devices, const DpdkConfig& config)
    : config_(config) {
  if (config_.local.port == 0) {
    config_.local.port = random_port();
  }
  const auto device_mbufs =
      static_cast<std::uint32_t>(devices.size()) * (config.rx_descriptors + config.tx_descriptors);
  const std::uint32_t needed = device_mbufs + kSpareMbufs;
  if (config.mbufs != 0 && config.mbufs < needed) {
    throw ConfigurationError("mbufs " + std::to_string(config.mbufs) + " is less than the " + std::to_string(needed) +
                             " that the descriptors of " + std::to_string(devices.size()) +
                             " device(s) and bursts need");
  }
  pool_ =
      obtain_pool(DpdkRuntime::port_of(devices.front()), config.mbufs != 0 ? config.mbufs : needed, config.mtu_bytes);
  for (const std::string& device : devices) {
    ports_.push_back(std::make_unique<DpdkPort>(runtime, device, config, pool_));
  }
  add_configured_neighbours();
}

DpdkIo::~DpdkIo() { rte_pktmbuf_free_bulk(received_.data(), static_cast<unsigned>(received_count_)); }

void DpdkIo::add_configured_neighbours() {
  for (const DpdkNeighbour& configured : config_.neighbours) {
    if (configured.device_index >= ports_.size()) {
      throw ConfigurationError("neighbour " + ipv4_to_string(configured.ip) + " is behind device number " +
                               std::to_string(configured.device_index) + ", but there are " +
                               std::to_string(ports_.size()));
    }
    learn(configured.ip, configured.mac, configured.device_index);
    Neighbour* entry = neighbours_.find(configured.ip);
    if (entry == nullptr) {
      throw ConfigurationError("neighbour " + ipv4_to_string(configured.ip) +
                               " cannot be added: it is 0.0.0.0, or there are too many configured neighbours");
    }
    entry->fixed = true;
  }
}

std::size_t DpdkIo::receive(std::span<RxPacket> packets) noexcept {
  thread_local const EalThread registration;
  rte_pktmbuf_free_bulk(received_.data(), static_cast<unsigned>(received_count_));
  received_count_ = 0;
  std::size_t count = 0;
  for (std::size_t i = 0; i < ports_.size(); ++i) {
    const std::size_t port_index = next_port_;
    next_port_ = next_port_ + 1 == ports_.size() ? 0 : next_port_ + 1;
    const std::size_t room = std::min(packets.size() - count, received_.size() - received_count_);
    const std::span<rte_mbuf*> burst{received_.data() + received_count_, room};
    const std::size_t frames = ports_[port_index]->receive(burst);
    for (std::size_t f = 0; f < frames; ++f) {
      count += accept(burst[f], port_index, packets[count]) ? 1 : 0;
    }
    received_count_ += frames;
    if (received_count_ == received_.size() || count == packets.size()) {
      break;
    }
  }
  counters_.rx_packets += count;
  idle_polls_ = count > 0 ? 0 : idle_polls_;
  return count;
}

/// Looks at one frame, which stays in received_ whatever it is; true when `packet` was filled in.
bool DpdkIo::accept(rte_mbuf* mbuf, std::size_t port_index, RxPacket& packet) noexcept {
  if (mbuf->nb_segs > 1) {  // longer than the MTU the buffers were made for
    ++counters_.rx_malformed;
    return false;
  }
  const std::uint64_t ip_status = mbuf->ol_flags & RTE_MBUF_F_RX_IP_CKSUM_MASK;
  const std::uint64_t udp_status = mbuf->ol_flags & RTE_MBUF_F_RX_L4_CKSUM_MASK;
  const FrameFilter filter{ports_[port_index]->mac(), config_.local, ip_status != RTE_MBUF_F_RX_IP_CKSUM_GOOD,
                           config_.verify_udp_checksum && udp_status != RTE_MBUF_F_RX_L4_CKSUM_GOOD};
  const std::span<const std::uint8_t> frame{rte_pktmbuf_mtod(mbuf, const std::uint8_t*), mbuf->data_len};
  const ParsedFrame parsed = parse_frame(frame, filter);
  switch (parsed.kind) {
    case FrameKind::kDatagram:
      packet = {parsed.payload.data(), static_cast<std::uint32_t>(parsed.payload.size()), parsed.from};
      counters_.rx_bytes += parsed.payload.size();
      learn(parsed.from.ip, parsed.from_mac, port_index);
      return true;
    case FrameKind::kArp:
      handle_arp(frame, port_index);
      return false;
    case FrameKind::kOther:
      ++counters_.rx_other;
      return false;
    case FrameKind::kMalformed:
      ++counters_.rx_malformed;
      return false;
  }
  return false;
}

void DpdkIo::handle_arp(std::span<const std::uint8_t> frame, std::size_t port_index) noexcept {
  const auto arp = parse_arp(frame);
  if (!arp) {
    ++counters_.rx_malformed;
    return;
  }
  const bool for_us = arp->target_ip == config_.local.ip;
  if (for_us || neighbours_.find(arp->sender_ip) != nullptr) {  // a neighbour we know may announce a new MAC address
    learn(arp->sender_ip, arp->sender_mac, port_index);
  }
  if (!for_us) {
    ++counters_.rx_other;
    return;
  }
  if (arp->operation == kArpRequest) {
    DpdkPort& port = *ports_[port_index];
    send_arp(make_arp(kArpReply, port.mac(), config_.local.ip, arp->sender_mac, arp->sender_ip), port);
  }
}

void DpdkIo::learn(std::uint32_t ip, const MacAddress& mac, std::size_t port_index) noexcept {
  Neighbour* entry = neighbours_.find_or_add(ip);
  if (entry == nullptr || entry->fixed) {
    return;
  }
  if (entry->resolved && entry->port_index == port_index && entry->frame.ethernet.destination == mac) {
    return;
  }
  entry->port_index = static_cast<std::uint16_t>(port_index);
  entry->frame = make_frame_template(ports_[port_index]->mac(), config_.local, mac, ip);
  entry->resolved = true;
}

/// The neighbour that leads to `ip`, or nullptr while ARP looks for it.
Neighbour* DpdkIo::resolve(std::uint32_t ip) noexcept {
  const bool on_link = ((ip ^ config_.local.ip) & network_mask(config_.prefix_length)) == 0;
  const std::uint32_t next_hop = on_link || config_.gateway_ip == 0 ? ip : config_.gateway_ip;
  Neighbour* hop = neighbours_.find_or_add(next_hop);
  if (hop == nullptr) {
    return nullptr;
  }
  if (hop->resolved) {
    MacAddress mac = hop->frame.ethernet.destination;
    learn(ip, mac, hop->port_index);  // an off-link address gets its own template
    return neighbours_.find(ip);
  }
  const std::uint64_t now = rte_get_timer_cycles();
  if (now >= hop->next_request) {
    hop->next_request = now + rte_get_timer_hz() / 10;
    for (const auto& port : ports_) {
      send_arp(make_arp(kArpRequest, port->mac(), config_.local.ip, kBroadcastMac, next_hop), *port);
    }
  }
  return nullptr;
}

void DpdkIo::send_arp(const ArpFrame& frame, DpdkPort& port) noexcept {
  rte_mbuf* mbuf = rte_pktmbuf_alloc(pool_);
  if (mbuf == nullptr) {
    ++counters_.tx_no_buffer;
    return;
  }
  std::memcpy(rte_pktmbuf_append(mbuf, sizeof frame), &frame, sizeof frame);
  IoCounters not_datagrams;
  port.flush(counters_);
  port.transmit(mbuf, not_datagrams);
  port.flush(not_datagrams);
}

bool DpdkIo::send(Endpoint to, std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload,
                  std::span<const std::uint8_t> trailer) noexcept {
  const std::size_t datagram_bytes = header.size() + payload.size() + trailer.size();
  if (header.size() > kMaxHeaderBytes || trailer.size() > kMaxTrailerBytes || datagram_bytes == 0 ||
      datagram_bytes > max_datagram_bytes(to)) {
    ++counters_.tx_errors;
    return false;
  }
  Neighbour* neighbour = neighbours_.find(to.ip);
  if (neighbour == nullptr || !neighbour->resolved) {
    neighbour = resolve(to.ip);
    if (neighbour == nullptr) {
      ++counters_.tx_no_neighbour;
      return false;
    }
  }
  rte_mbuf* mbuf = rte_pktmbuf_alloc(pool_);
  if (mbuf == nullptr) {
    ++counters_.tx_no_buffer;
    return false;
  }
  std::uint8_t* bytes = rte_pktmbuf_mtod(mbuf, std::uint8_t*);
  mbuf->data_len = static_cast<std::uint16_t>(kFrameHeaderBytes + datagram_bytes);
  mbuf->pkt_len = mbuf->data_len;
  std::memcpy(bytes, &neighbour->frame, kFrameHeaderBytes);
  std::uint8_t* end = std::copy(header.begin(), header.end(), bytes + kFrameHeaderBytes);
  end = std::copy(payload.begin(), payload.end(), end);
  std::copy(trailer.begin(), trailer.end(), end);
  DpdkPort& port = *ports_[neighbour->port_index];
  auto* frame = reinterpret_cast<UdpFrameHeader*>(bytes);
  complete_frame(*frame, to.port, datagram_bytes);
  write_checksum(mbuf, frame, port);
  port.transmit(mbuf, counters_);
  return true;
}

void DpdkIo::write_checksum(rte_mbuf* mbuf, UdpFrameHeader* frame, const DpdkPort& port) const noexcept {
  const std::size_t udp_bytes = frame->udp.length_bytes;
  if (port.tx_flags() != 0) {
    mbuf->ol_flags |= port.tx_flags();
    mbuf->l2_len = sizeof(EthernetHeader);
    mbuf->l3_len = sizeof(Ipv4Header);
    frame->ip.checksum = 0;
    frame->udp.checksum = pseudo_header_sum(frame->ip, udp_bytes);
  } else if (port.software_udp_checksum()) {
    const auto* udp = reinterpret_cast<const std::uint8_t*>(&frame->udp);
    const std::uint16_t checksum = udp_checksum(frame->ip, {udp, udp_bytes});
    frame->udp.checksum = checksum == 0 ? std::uint16_t{0xffff} : checksum;  // 0 would say that there is none
  }
}

void DpdkIo::flush() noexcept {
  for (const auto& port : ports_) {
    port->flush(counters_);
  }
}

void DpdkIo::wait(std::chrono::microseconds timeout) noexcept {
  ++idle_polls_;
  if (idle_polls_ < config_.polls_before_yield) {
    rte_pause();
  } else if (idle_polls_ < config_.polls_before_sleep) {
    sched_yield();
  } else {
    idle_polls_ = std::min(idle_polls_, config_.polls_before_sleep);
    const auto longest_us = static_cast<std::int64_t>(config_.sleep_us);
    usleep(static_cast<useconds_t>(std::clamp<std::int64_t>(timeout.count(), 0, longest_us)));
  }
}

}  // namespace

std::unique_ptr<PacketIo> open_dpdk_io(const DpdkConfig& config) {
  if (config.mtu_bytes < 576 || config.prefix_length > 32 || config.local.ip == 0) {
    throw ConfigurationError(
        "DPDK needs an own IPv4 address, an MTU of at least 576 and a prefix length of at most 32");
  }
  DpdkRuntime& runtime = DpdkRuntime::start(config.eal_args);
  const std::vector<std::string> devices = config.devices.empty() ? DpdkRuntime::devices() : config.devices;
  if (devices.empty()) {
    throw DpdkUnavailableError(
        "DPDK runs but has no device: bind a network card to vfio-pci (dpdk-devbind.py) and name it by -a, or add a "
        "virtual one, for example --vdev=net_af_packet0,iface=eth1");
  }
  return std::make_unique<DpdkIo>(runtime, devices, config);
}

}  // namespace thc::io
