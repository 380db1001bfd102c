// The network the I/O tests run on: a private network namespace with veth pairs, and EAL with the DPDK devices on it.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/dpdk_io.h"
#include "io/packet_io.h"
#include "thc/wire_layout.h"

namespace thc::io::test {

inline constexpr std::uint32_t kLoopback = 0x7f000001;
inline constexpr IpAddress kIpv6Loopback{0, 1};

/// Empty where this kernel speaks IPv6, else its error.
std::string ipv6_missing();

inline std::span<const std::uint8_t> bytes_of(const wire::Header& header) {
  return {reinterpret_cast<const std::uint8_t*>(&header), sizeof header};
}

/// DPDK does not start with this configuration, and the error has a hint.
template <typename Error>
void expect_refused(const DpdkConfig& config, const std::string& hint) {
  try {
    make_dpdk_ios(config);
    ADD_FAILURE() << "was accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(hint), std::string::npos) << error.what();
  }
}

using Ios = std::vector<std::unique_ptr<PacketIo>>;
using IoPair = std::pair<std::unique_ptr<PacketIo>, std::unique_ptr<PacketIo>>;

/// Set up once, before the first test. Reasons say why devices are missing (no root, no iproute2, no DPDK).
class TestNetwork {
 public:
  static const TestNetwork& instance();

  /// Empty when devices of this kind work, else why not.
  const std::string& veth_missing() const { return veth_missing_; }
  const std::string& dpdk_missing() const { return dpdk_missing_; }

  /// Two DPDK devices connected to each other.
  IoPair memif_pair() const;
  IoPair af_packet_pair() const;
  /// Two devices at 10.96.0.1 and 10.96.0.2, connected to each other, that have two queues; a memif has no fewer.
  DpdkConfig memif_queues(std::uint8_t host) const;
  /// One of two connected devices: 10.96.0.1, which has two queues, or 10.96.0.2, which has one.
  DpdkConfig af_packet_queues(std::uint8_t host) const;

  /// 10.99.0.2 on a device whose other end, the kernel's interface "thc_kernel", has 10.99.0.1; gateway 10.99.0.9.
  std::unique_ptr<PacketIo> af_packet_beside_kernel() const;

  /// Configuration of one device at 10.`net`.0.`host`, to be changed by the test.
  DpdkConfig dpdk_config(const std::string& device, std::uint8_t net, std::uint8_t host) const;

  static constexpr const char* kKernelInterface = "thc_kernel";

 private:
  TestNetwork();
  static std::string set_up_veth();

  std::string veth_missing_;
  std::string dpdk_missing_;
  DpdkConfig base_;
};

/// Time for datagrams that must come: longer than a busy machine stalls.
inline constexpr std::chrono::seconds kPatience{10};

/// Gives the next `count` datagrams to `take`; returns how many came.
std::size_t receive_each(PacketIo& io, std::size_t count, const std::function<void(const RxPacket&)>& take,
                         std::chrono::milliseconds patience = kPatience);

/// Next datagram, copied; empty when none came.
std::string receive_one(PacketIo& io, Endpoint* from = nullptr, std::chrono::milliseconds patience = kPatience);

}  // namespace thc::io::test
