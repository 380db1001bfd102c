#include "io/dpdk_io.h"

#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <random>
#include <utility>

#include "io/dpdk_device.h"
#include "io/dpdk_handoff.h"
#include "io/dpdk_module.h"
#include "io/dpdk_next_hops.h"
#include "io/dpdk_queue.h"
#include "io/dpdk_runtime.h"
#include "io/eal_arguments.h"
#include "io/frame.h"
#include "thc/errors.h"

namespace thc::io {
namespace {

constexpr std::size_t kFrameHeaderBytes = sizeof(UdpFrameHeader);
constexpr std::uint16_t kFirstRandomPort = 49152;
// Empty polls in a row after which wait() yields the CPU, and after which it sleeps.
constexpr std::uint32_t kPollsBeforeYield = 256;
constexpr std::uint32_t kPollsBeforeSleep = 4096;
constexpr std::int64_t kSleepUs = 20;

std::uint16_t random_port(std::uint16_t count) {
  std::random_device random;
  return static_cast<std::uint16_t>(kFirstRandomPort + random() % (kLastPort + 1U - kFirstRandomPort - count));
}

struct DpdkDevices {
  explicit DpdkDevices(DpdkConfig of_all) noexcept : config(std::move(of_all)) {}

  DpdkConfig config;  // port resolved
  std::vector<std::unique_ptr<DpdkDevice>> devices;
  std::optional<DpdkHandoff> handoff;  // for several threads

  std::size_t receive_frames() const noexcept {
    return handoff ? std::min<std::size_t>(kDpdkDescriptors, DpdkHandoff::kFrames) : kDpdkDescriptors;
  }
};

class DpdkIo final : public PacketIo {
 public:
  DpdkIo(std::shared_ptr<DpdkDevices> shared, std::uint16_t queue);
  ~DpdkIo() override;

  std::size_t receive(std::span<RxPacket> packets) noexcept override;
  bool send(Endpoint to, std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload,
            std::span<const std::uint8_t> trailer) noexcept override;
  void flush() noexcept override;
  void wait(std::chrono::microseconds timeout) noexcept override;
  void wake() noexcept override {}  // wait() polls and never sleeps for long
  Endpoint local() const noexcept override { return local_; }
  std::size_t max_datagram_bytes(Endpoint /*to*/) const noexcept override {
    return config_.mtu_bytes - kIpUdpHeaderBytes;
  }
  std::size_t receive_buffer_bytes() const noexcept override { return receive_frames_ * config_.mtu_bytes; }
  const IoCounters& counters() const noexcept override { return counters_; }

 private:
  using Burst = std::array<rte_mbuf*, DpdkQueue::kBurst>;

  std::size_t room(std::span<RxPacket> packets, std::size_t count) const noexcept {
    return std::min(packets.size() - count, received_.size() - received_count_);
  }
  std::size_t take_handed_over(std::span<RxPacket> packets) noexcept;
  bool accept(rte_mbuf* mbuf, std::size_t port_index, bool handed_over, RxPacket& packet) noexcept;
  FrameFilter filter_for(const rte_mbuf& mbuf, std::size_t port_index) const noexcept;
  void take_arp(rte_mbuf* mbuf, std::span<const std::uint8_t> frame, std::size_t port_index, bool handed_over) noexcept;
  bool hand_over(std::uint16_t queue, rte_mbuf* mbuf) noexcept;
  std::size_t index_of(std::uint16_t port_id) const noexcept;
  static void write_checksum(rte_mbuf* mbuf, UdpFrameHeader* frame, const DpdkDevice& device) noexcept;

  const std::shared_ptr<DpdkDevices> shared_;
  const DpdkConfig& config_;
  const std::uint16_t queue_;
  const Endpoint local_;
  const std::size_t receive_frames_;
  std::vector<std::unique_ptr<DpdkPort>> ports_;
  IoCounters counters_;
  std::optional<DpdkNextHops> next_hops_;
  Burst received_{};  // handed out by the last receive()
  std::size_t received_count_ = 0;
  std::size_t next_port_ = 0;
  std::uint32_t idle_polls_ = 0;
};

DpdkIo::DpdkIo(std::shared_ptr<DpdkDevices> shared, std::uint16_t queue)
    : shared_(std::move(shared)),
      config_(shared_->config),
      queue_(queue),
      local_{config_.local.ip, static_cast<std::uint16_t>(config_.local.port + queue)},
      receive_frames_(shared_->receive_frames()) {
  for (const auto& device : shared_->devices) {
    ports_.push_back(std::make_unique<DpdkPort>(*device, queue));
  }
  next_hops_.emplace(config_, local_, ports_, counters_);
}

DpdkIo::~DpdkIo() { rte_pktmbuf_free_bulk(received_.data(), static_cast<unsigned>(received_count_)); }

std::size_t DpdkIo::receive(std::span<RxPacket> packets) noexcept {
  DpdkRuntime::prepare_this_thread();
  rte_pktmbuf_free_bulk(received_.data(), static_cast<unsigned>(received_count_));
  received_count_ = 0;
  std::size_t count = shared_->handoff ? take_handed_over(packets) : 0;
  bool idle = received_count_ == 0;
  for (std::size_t i = 0; i < ports_.size() && room(packets, count) > 0; ++i) {
    const std::size_t port_index = next_port_;
    next_port_ = next_port_ + 1 == ports_.size() ? 0 : next_port_ + 1;
    Burst burst;
    const std::size_t frames =
        ports_[port_index]->queue.receive(std::span<rte_mbuf*>(burst).first(room(packets, count)));
    for (std::size_t f = 0; f < frames; ++f) {
      count += accept(burst[f], port_index, /*handed_over=*/false, packets[count]) ? 1 : 0;
    }
    idle = idle && frames == 0;
  }
  counters_.rx_packets += count;
  idle_polls_ = idle ? idle_polls_ : 0;  // frames of other threads count: these wait for them
  return count;
}

std::size_t DpdkIo::take_handed_over(std::span<RxPacket> packets) noexcept {
  Burst burst;
  const std::size_t frames = shared_->handoff->take(queue_, std::span<rte_mbuf*>(burst).first(room(packets, 0)));
  std::size_t count = 0;
  for (std::size_t f = 0; f < frames; ++f) {
    count += accept(burst[f], index_of(burst[f]->port), /*handed_over=*/true, packets[count]) ? 1 : 0;
  }
  return count;
}

std::size_t DpdkIo::index_of(std::uint16_t port_id) const noexcept {
  std::size_t index = 0;
  while (index + 1 < ports_.size() && ports_[index]->device.port_id() != port_id) {
    ++index;
  }
  return index;
}

FrameFilter DpdkIo::filter_for(const rte_mbuf& mbuf, std::size_t port_index) const noexcept {
  const std::uint64_t ip_status = mbuf.ol_flags & RTE_MBUF_F_RX_IP_CKSUM_MASK;
  const std::uint64_t udp_status = mbuf.ol_flags & RTE_MBUF_F_RX_L4_CKSUM_MASK;
  return {.mac = ports_[port_index]->device.mac(),
          .local = local_,
          .check_ip_checksum = ip_status != RTE_MBUF_F_RX_IP_CKSUM_GOOD,
          .check_udp_checksum = udp_status != RTE_MBUF_F_RX_L4_CKSUM_GOOD,
          .first_port = config_.local.port,
          .threads = config_.queues};
}

/// Keeps the frame in received_ or hands it to another thread. Returns true if it filled in `packet`.
bool DpdkIo::accept(rte_mbuf* mbuf, std::size_t port_index, bool handed_over, RxPacket& packet) noexcept {
  received_[received_count_++] = mbuf;
  if (mbuf->nb_segs > 1) {  // a frame above the MTU
    ++counters_.rx_malformed;
    return false;
  }
  const std::span<const std::uint8_t> frame{rte_pktmbuf_mtod(mbuf, const std::uint8_t*), mbuf->data_len};
  const ParsedFrame parsed = parse_frame(frame, filter_for(*mbuf, port_index));
  switch (parsed.kind) {
    case FrameKind::kDatagram:
      packet = {parsed.payload.data(), static_cast<std::uint32_t>(parsed.payload.size()), parsed.from,
                parsed.congested};
      counters_.rx_bytes += parsed.payload.size();
      next_hops_->learn(parsed.from.ip.ipv4(), parsed.from_mac, port_index);
      return true;
    case FrameKind::kSibling:
      if (hand_over(parsed.thread, mbuf)) {
        --received_count_;
        ++counters_.rx_handed_over;
      }
      return false;
    case FrameKind::kArp:
      take_arp(mbuf, frame, port_index, handed_over);
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

/// The device delivers an ARP frame to one thread, but all threads send. The rings are for datagrams: ARP between other
/// hosts never enters a ring. Other threads learn new MAC addresses from datagrams, the gateway's from its ARP.
void DpdkIo::take_arp(rte_mbuf* mbuf, std::span<const std::uint8_t> frame, std::size_t port_index,
                      bool handed_over) noexcept {
  const auto arp = parse_arp(frame);
  if (!arp) {
    ++counters_.rx_malformed;
    return;
  }
  const bool concerns_us = next_hops_->take_arp(*arp, port_index, /*answer=*/!handed_over);
  if (handed_over || !concerns_us) {
    return;
  }
  for (std::uint16_t queue = 0; queue < config_.queues; ++queue) {
    if (queue == queue_) continue;
    rte_mbuf_refcnt_update(mbuf, 1);
    if (!hand_over(queue, mbuf)) {
      rte_pktmbuf_free(mbuf);  // drops the reference
    }
  }
}

bool DpdkIo::hand_over(std::uint16_t queue, rte_mbuf* mbuf) noexcept {
  const bool given = shared_->handoff->give(queue, mbuf);
  counters_.rx_handoff_full += given ? 0 : 1;
  return given;
}

bool DpdkIo::send(Endpoint to, std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload,
                  std::span<const std::uint8_t> trailer) noexcept {
  const std::size_t datagram_bytes = header.size() + payload.size() + trailer.size();
  if (header.size() > kMaxHeaderBytes || trailer.size() > kMaxTrailerBytes || datagram_bytes == 0 ||
      datagram_bytes > max_datagram_bytes(to)) {
    ++counters_.tx_errors;
    return false;
  }
  const Neighbour* neighbour = next_hops_->resolve(to.ip.ipv4());
  if (neighbour == nullptr) {
    ++counters_.tx_no_neighbour;
    return false;
  }
  DpdkPort& port = *ports_[neighbour->port_index];
  rte_mbuf* mbuf = rte_pktmbuf_alloc(port.device.pool());
  if (mbuf == nullptr) {
    port.queue.flush(counters_);  // waits for room in the ring, which frees other mbufs
    mbuf = rte_pktmbuf_alloc(port.device.pool());
  }
  if (mbuf == nullptr) {
    ++counters_.tx_no_buffer;
    return false;
  }
  std::uint8_t* bytes = rte_pktmbuf_mtod(mbuf, std::uint8_t*);
  mbuf->data_len = static_cast<std::uint16_t>(kFrameHeaderBytes + datagram_bytes);
  mbuf->pkt_len = mbuf->data_len;
  const auto* frame_template = reinterpret_cast<const std::uint8_t*>(&neighbour->frame);
  std::uint8_t* end = std::copy_n(frame_template, kFrameHeaderBytes, bytes);
  end = std::copy(header.begin(), header.end(), end);
  end = std::copy(payload.begin(), payload.end(), end);
  std::copy(trailer.begin(), trailer.end(), end);
  auto* frame = reinterpret_cast<UdpFrameHeader*>(bytes);
  frame->ip.destination = to.ip.ipv4();  // the template may be the gateway's
  complete_frame(*frame, to.port, datagram_bytes);
  write_checksum(mbuf, frame, port.device);
  port.queue.transmit(mbuf, counters_);
  return true;
}

void DpdkIo::write_checksum(rte_mbuf* mbuf, UdpFrameHeader* frame, const DpdkDevice& device) noexcept {
  const std::size_t udp_bytes = frame->udp.length_bytes;
  if (device.tx_flags() != 0) {
    mbuf->ol_flags |= device.tx_flags();
    mbuf->l2_len = sizeof(EthernetHeader);
    mbuf->l3_len = sizeof(Ipv4Header);
    frame->ip.checksum = 0;
    frame->udp.checksum = pseudo_header_sum(frame->ip, udp_bytes);
  } else if (device.software_udp_checksum()) {
    const auto* udp = reinterpret_cast<const std::uint8_t*>(&frame->udp);
    const std::uint16_t checksum = udp_checksum(frame->ip, {udp, udp_bytes});
    frame->udp.checksum = checksum == 0 ? std::uint16_t{0xffff} : checksum;  // 0 would mean no checksum
  }
}

void DpdkIo::flush() noexcept {
  for (const auto& port : ports_) {
    port->queue.flush(counters_);
  }
}

void DpdkIo::wait(std::chrono::microseconds timeout) noexcept {
  ++idle_polls_;
  if (idle_polls_ < kPollsBeforeYield) {
    rte_pause();
  } else if (idle_polls_ < kPollsBeforeSleep) {
    sched_yield();
  } else {
    idle_polls_ = kPollsBeforeSleep;
    usleep(static_cast<useconds_t>(std::clamp<std::int64_t>(timeout.count(), 0, kSleepUs)));
  }
}

std::shared_ptr<DpdkDevices> open_devices(DpdkConfig config) {
  DpdkRuntime& runtime = DpdkRuntime::start(with_queue_arguments(config.eal_args, config.queues));
  const std::vector<std::string> names = config.devices.empty() ? DpdkRuntime::devices() : config.devices;
  if (names.empty()) {
    throw DpdkUnavailableError("DPDK runs but has no device: " + device_hint(config.eal_args));
  }
  if (config.local.port == 0) {
    config.local.port = random_port(config.queues);
  }
  auto shared = std::make_shared<DpdkDevices>(std::move(config));
  for (const std::string& name : names) {
    shared->devices.push_back(std::make_unique<DpdkDevice>(runtime, name, shared->config));
  }
  if (shared->config.queues > 1) {
    shared->handoff.emplace(shared->config.queues, rte_eth_dev_socket_id(shared->devices.front()->port_id()));
  }
  return shared;
}

std::vector<std::unique_ptr<PacketIo>> open_dpdk_ios(const DpdkConfig& config) {
  if (config.mtu_bytes < 576 || config.prefix_length > 32 || !config.local.ip.is_ipv4() || config.local.ip.is_any()) {
    throw ConfigurationError(
        "DPDK needs the host's IPv4 address (local), an MTU of at least 576 and a prefix length of at most 32");
  }
  check_port_range(config.local.port, config.queues);
  const std::shared_ptr<DpdkDevices> shared = open_devices(config);
  std::vector<std::unique_ptr<PacketIo>> ios;
  for (std::uint16_t queue = 0; queue < config.queues; ++queue) {
    ios.push_back(std::make_unique<DpdkIo>(shared, queue));
  }
  return ios;
}

}  // namespace
}  // namespace thc::io

extern "C" {
// NOLINTNEXTLINE(readability-identifier-naming): the name of a symbol, see kDpdkModuleSymbol
__attribute__((visibility("default"))) extern const thc::io::DpdkModule thc_dpdk_module;
const thc::io::DpdkModule thc_dpdk_module{THC_VERSION, thc::io::open_dpdk_ios};
}
