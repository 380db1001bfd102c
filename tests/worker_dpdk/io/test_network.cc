#include "test_network.h"

#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "io/udp_io.h"
#include "thc/errors.h"

namespace thc::io::test {
namespace {

// NOLINTNEXTLINE(bugprone-command-processor): the commands are the constants below
bool run(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

/// The kernel leaves checksums of local traffic to the (absent) hardware of a veth; DPDK would see none.
bool disable_checksum_offload(const char* interface) {
  const int fd = socket(AF_INET, SOCK_DGRAM, 0);
  ethtool_value off{ETHTOOL_STXCSUM, 0};
  ifreq request{};
  std::strncpy(request.ifr_name, interface, IFNAMSIZ - 1);
  request.ifr_data = reinterpret_cast<char*>(&off);
  const bool ok = ioctl(fd, SIOCETHTOOL, &request) == 0;
  close(fd);
  return ok;
}

}  // namespace

std::string ipv6_missing() {
  try {
    make_udp_io({.local = {kIpv6Loopback, 0}});
  } catch (const TransportError& error) {
    return error.what();
  }
  return {};
}

const TestNetwork& TestNetwork::instance() {
  static const TestNetwork network;
  return network;
}

TestNetwork::TestNetwork() : veth_missing_(set_up_veth()) {
  // "secret" and "qpairs" are given, because otherwise they follow from the number of queues, and EAL starts once.
  const std::string socket = ",id=0,secret=io_test,socket-abstract=yes,socket=thc_io_test_" + std::to_string(getpid());
  base_.eal_args = {"--no-huge",
                    "-m",
                    "512",
                    "--vdev=net_memif0,role=server" + socket,
                    "--vdev=net_memif1,role=client" + socket,
                    "--vdev=net_memif2,role=client" + socket + "_absent",
                    "--vdev=net_memif3,role=server" + socket + "_queues",
                    "--vdev=net_memif4,role=client" + socket + "_queues"};
  if (veth_missing_.empty()) {
    base_.eal_args.insert(
        base_.eal_args.end(),
        {"--vdev=net_af_packet0,qpairs=1,iface=thc_a", "--vdev=net_af_packet1,qpairs=1,iface=thc_b",
         "--vdev=net_af_packet2,qpairs=1,iface=thc_dpdk", "--vdev=net_af_packet3,qpairs=2,iface=thc_two",
         "--vdev=net_af_packet4,qpairs=1,iface=thc_one"});
  }
  try {
    make_dpdk_io(dpdk_config("net_memif0", 97, 1));
  } catch (const Error& error) {
    dpdk_missing_ = error.what();
  }
}

std::string TestNetwork::set_up_veth() {
  if (unshare(CLONE_NEWNET) != 0) {
    return std::string("cannot make a network namespace (needs root): ") + std::strerror(errno);
  }
  // Without an IPv6 address the kernel sends nothing of its own accord, which tests would take for frames of theirs.
  const bool up =
      run("ip link set lo up && ip link add thc_a type veth peer name thc_b && "
          "ip link add thc_dpdk type veth peer name thc_kernel && "
          "ip link add thc_two type veth peer name thc_one && "
          "for i in thc_a thc_b thc_dpdk thc_kernel thc_two thc_one; do ip link set $i addrgenmode none; "
          "ip link set "
          "$i up; done && "
          "ip addr add 10.99.0.1/24 dev thc_kernel");
  if (!up || !disable_checksum_offload(kKernelInterface)) {
    return "cannot make veth interfaces (needs iproute2 and the veth module)";
  }
  return {};
}

DpdkConfig TestNetwork::dpdk_config(const std::string& device, std::uint8_t net, std::uint8_t host) const {
  DpdkConfig config = base_;
  config.devices = {device};
  config.local = {10U << 24 | std::uint32_t{net} << 16 | host, 5000};
  return config;
}

IoPair TestNetwork::memif_pair() const {
  auto server = make_dpdk_io(dpdk_config("net_memif0", 97, 1));
  return {std::move(server), make_dpdk_io(dpdk_config("net_memif1", 97, 2))};
}

IoPair TestNetwork::af_packet_pair() const {
  auto first = make_dpdk_io(dpdk_config("net_af_packet0", 98, 1));
  return {std::move(first), make_dpdk_io(dpdk_config("net_af_packet1", 98, 2))};
}

DpdkConfig TestNetwork::memif_queues(std::uint8_t host) const {
  DpdkConfig config = dpdk_config(host == 1 ? "net_memif3" : "net_memif4", 96, host);
  config.queues = 2;
  return config;
}

DpdkConfig TestNetwork::af_packet_queues(std::uint8_t host) const {
  return dpdk_config(host == 1 ? "net_af_packet3" : "net_af_packet4", 96, host);
}

std::unique_ptr<PacketIo> TestNetwork::af_packet_beside_kernel() const {
  DpdkConfig config = dpdk_config("net_af_packet2", 99, 2);
  config.gateway_ip = 10U << 24 | 99U << 16 | 9U;
  return make_dpdk_io(config);
}

std::size_t receive_each(PacketIo& io, std::size_t count, const std::function<void(const RxPacket&)>& take,
                         std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  std::array<RxPacket, 64> packets;
  std::size_t received = 0;
  while (true) {
    const bool last_look = std::chrono::steady_clock::now() >= deadline;  // after a stall, arrived datagrams count
    const std::size_t n = io.receive(std::span(packets).first(std::min(count - received, packets.size())));
    std::for_each_n(packets.begin(), n, take);
    received += n;
    if (received == count || (n == 0 && last_look)) return received;
    if (n == 0) io.wait(std::chrono::milliseconds(10));
  }
}

std::string receive_one(PacketIo& io, Endpoint* from, std::chrono::milliseconds patience) {
  std::string text;
  const auto take = [&](const RxPacket& packet) {
    text.assign(reinterpret_cast<const char*>(packet.data), packet.size_bytes);
    if (from != nullptr) *from = packet.from;
  };
  receive_each(io, 1, take, patience);
  return text;
}

}  // namespace thc::io::test
