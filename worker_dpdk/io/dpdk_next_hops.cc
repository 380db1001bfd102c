#include "io/dpdk_next_hops.h"

#include <rte_cycles.h>
#include <rte_mbuf.h>

#include <cstring>
#include <string>

#include "io/address.h"
#include "thc/errors.h"

namespace thc::io {
namespace {

std::uint32_t network_mask(unsigned prefix_length) noexcept {
  return prefix_length == 0 ? 0 : ~std::uint32_t{0} << (32 - prefix_length);
}

}  // namespace

DpdkNextHops::DpdkNextHops(const DpdkConfig& config, Endpoint local, std::span<const std::unique_ptr<DpdkPort>> ports,
                           IoCounters& counters)
    : config_(config), local_(local), ports_(ports), counters_(counters) {
  for (const DpdkNeighbour& configured : config.neighbours) {
    add_configured(configured);
  }
}

void DpdkNextHops::add_configured(const DpdkNeighbour& configured) {
  learn(configured.ip, configured.mac, 0);
  Neighbour* entry = neighbours_.find(configured.ip);
  if (entry == nullptr) {
    throw ConfigurationError("neighbour " + to_string(IpAddress(configured.ip)) +
                             " cannot be added: it is 0.0.0.0, or there are too many configured neighbours");
  }
  entry->fixed = true;
}

bool DpdkNextHops::take_arp(const ArpPacket& arp, std::size_t port_index, bool answer) noexcept {
  const bool for_us = arp.target_ip == local_.ip.ipv4();
  const bool of_gateway = arp.sender_ip == config_.gateway_ip && arp.sender_ip != 0;
  const bool concerns_us = for_us || of_gateway || neighbours_.find(arp.sender_ip) != nullptr;  // its MAC may be new
  if (concerns_us) {
    learn(arp.sender_ip, arp.sender_mac, port_index);
  }
  if (!answer) {
    return concerns_us;
  }
  if (!for_us) {
    ++counters_.rx_other;
  } else if (arp.operation == kArpRequest) {
    DpdkPort& port = *ports_[port_index];
    send_arp(make_arp(kArpReply, port.device.mac(), local_.ip.ipv4(), arp.sender_mac, arp.sender_ip), port);
  }
  return concerns_us;
}

void DpdkNextHops::learn(std::uint32_t ip, const MacAddress& mac, std::size_t port_index) noexcept {
  Neighbour* entry = neighbours_.find_or_add(ip);
  if (entry == nullptr || entry->fixed) {
    return;
  }
  if (entry->resolved && entry->port_index == port_index && entry->frame.ethernet.destination == mac) {
    return;
  }
  entry->port_index = static_cast<std::uint16_t>(port_index);
  entry->frame = make_frame_template(ports_[port_index]->device.mac(), local_, mac, ip);
  entry->resolved = true;
}

Neighbour* DpdkNextHops::resolve(std::uint32_t ip) noexcept {
  const bool on_link = ((ip ^ local_.ip.ipv4()) & network_mask(config_.prefix_length)) == 0;
  const bool direct = on_link || config_.gateway_ip == 0;
  if (Neighbour* known = neighbours_.find(ip); known != nullptr && known->resolved && (direct || known->fixed)) {
    return known;
  }
  const std::uint32_t next_hop = direct ? ip : config_.gateway_ip;
  Neighbour* hop = neighbours_.find_or_add(next_hop);
  if (hop != nullptr && !hop->resolved) {
    ask(*hop, next_hop);
    return nullptr;
  }
  return hop;
}

void DpdkNextHops::ask(Neighbour& hop, std::uint32_t next_hop) noexcept {
  const std::uint64_t now = rte_get_timer_cycles();
  if (now >= hop.next_request) {
    hop.next_request = now + rte_get_timer_hz() / 10;
    for (const auto& port : ports_) {
      send_arp(make_arp(kArpRequest, port->device.mac(), local_.ip.ipv4(), kBroadcastMac, next_hop), *port);
    }
  }
}

void DpdkNextHops::send_arp(const ArpFrame& frame, DpdkPort& port) noexcept {
  rte_mbuf* mbuf = rte_pktmbuf_alloc(port.device.pool());
  if (mbuf == nullptr) {
    ++counters_.tx_no_buffer;
    return;
  }
  std::memcpy(rte_pktmbuf_append(mbuf, sizeof frame), &frame, sizeof frame);
  IoCounters not_datagrams;
  port.queue.flush(counters_);
  port.queue.transmit(mbuf, not_datagrams);
  port.queue.flush(not_datagrams);
}

}  // namespace thc::io
