#include "io/dpdk_steering.h"

#include <rte_byteorder.h>
#include <rte_errno.h>
#include <rte_flow.h>

#include <array>

#include "thc/errors.h"

namespace thc::io {
namespace {

std::string describe(int rc, const rte_flow_error& error) {
  return error.message != nullptr ? error.message : rte_strerror(-rc);
}

/// Validates the rule, and creates it if `create`. Empty, or why not.
std::string apply_rule(std::uint16_t port_id, std::uint32_t local_ip, std::uint16_t udp_port, std::uint16_t queue,
                       bool create) {
  rte_flow_attr attributes{};
  attributes.ingress = 1;
  rte_flow_item_ipv4 ip{};
  ip.hdr.dst_addr = rte_cpu_to_be_32(local_ip);
  rte_flow_item_ipv4 ip_mask{};
  ip_mask.hdr.dst_addr = RTE_BE32(0xffffffff);
  rte_flow_item_udp udp{};
  udp.hdr.dst_port = rte_cpu_to_be_16(udp_port);
  rte_flow_item_udp udp_mask{};
  udp_mask.hdr.dst_port = RTE_BE16(0xffff);
  const std::array<rte_flow_item, 4> pattern{{
      {.type = RTE_FLOW_ITEM_TYPE_ETH, .spec = nullptr, .last = nullptr, .mask = nullptr},
      {.type = RTE_FLOW_ITEM_TYPE_IPV4, .spec = &ip, .last = nullptr, .mask = &ip_mask},
      {.type = RTE_FLOW_ITEM_TYPE_UDP, .spec = &udp, .last = nullptr, .mask = &udp_mask},
      {.type = RTE_FLOW_ITEM_TYPE_END, .spec = nullptr, .last = nullptr, .mask = nullptr},
  }};
  const rte_flow_action_queue to_queue{.index = queue};
  const std::array<rte_flow_action, 2> actions{{
      {.type = RTE_FLOW_ACTION_TYPE_QUEUE, .conf = &to_queue},
      {.type = RTE_FLOW_ACTION_TYPE_END, .conf = nullptr},
  }};
  rte_flow_error error{};
  if (!create) {
    const int rc = rte_flow_validate(port_id, &attributes, pattern.data(), actions.data(), &error);
    return rc == 0 ? "" : describe(rc, error);
  }
  const rte_flow* rule = rte_flow_create(port_id, &attributes, pattern.data(), actions.data(), &error);
  return rule != nullptr ? "" : describe(-rte_errno, error);
}

}  // namespace

void isolate_device(std::uint16_t port_id, const std::string& device) {
  rte_flow_error error{};
  if (const int rc = rte_flow_isolate(port_id, 1, &error); rc != 0) {
    throw ConfigurationError("DPDK device \"" + device + "\" cannot share its port with the kernel (" +
                             describe(rc, error) +
                             "): isolation needs a driver that leaves the port with the kernel, such as mlx5; leave "
                             "isolation out, and give DPDK a port or virtual function of its own");
  }
}

void end_isolation(std::uint16_t port_id) noexcept {
  rte_flow_error error{};
  rte_flow_isolate(port_id, 0, &error);
}

std::string steer_by_port(std::uint16_t port_id, std::uint32_t local_ip, std::uint16_t first_port,
                          std::uint16_t queues) {
  for (const bool create : {false, true}) {
    for (std::uint16_t queue = 0; queue < queues; ++queue) {
      const auto udp_port = static_cast<std::uint16_t>(first_port + queue);
      if (std::string why = apply_rule(port_id, local_ip, udp_port, queue, create); !why.empty()) {
        rte_flow_error error{};
        rte_flow_flush(port_id, &error);  // all or none
        return why;
      }
    }
  }
  return {};
}

}  // namespace thc::io
