#include "python/packet_io_factory.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/address.h"
#include "io/authenticated_io.h"
#include "io/name_lookup.h"
#include "python/register_comm.h"
#include "thc/errors.h"

namespace thc::python {
namespace {

namespace py = pybind11;

/// Other Python threads go on meanwhile.
io::Endpoint resolve_local(const std::string& local) {
  const py::gil_scoped_release release;
  return io::resolve_endpoint(local, 0);
}

void use_udp(IoConfig& config, const std::string& local, bool gso, bool gro) {
  config.back_end = io::UdpConfig{.local = resolve_local(local), .gso = gso, .gro = gro};
}

/// neighbours: (ip, mac) each.
void use_dpdk(IoConfig& config, const std::string& local, std::vector<std::string> eal_args,
              std::vector<std::string> devices, unsigned prefix_length, const std::string& gateway,
              const std::vector<std::pair<std::string, std::string>>& neighbours, std::uint16_t mtu_bytes,
              bool verify_udp_checksum) {
  io::DpdkConfig dpdk;
  dpdk.eal_args = std::move(eal_args);
  dpdk.devices = std::move(devices);
  dpdk.local = resolve_local(local);
  dpdk.prefix_length = static_cast<std::uint8_t>(prefix_length);
  dpdk.gateway_ip = gateway.empty() ? 0 : io::parse_ipv4(gateway);
  for (const auto& [ip, mac] : neighbours) {
    dpdk.neighbours.push_back({.ip = io::parse_ipv4(ip), .mac = io::parse_mac(mac), .device_index = 0});
  }
  dpdk.mtu_bytes = mtu_bytes;
  dpdk.verify_udp_checksum = verify_udp_checksum;
  config.back_end = std::move(dpdk);
}

void add_faults(IoConfig& config, double drop, double duplicate, double reorder, std::uint64_t seed) {
  const io::FaultRates rates{.drop = drop, .duplicate = duplicate, .reorder = reorder};
  config.faults = io::FaultConfig{.send = rates, .receive = rates, .seed = seed};
}

std::unique_ptr<io::PacketIo> make_back_end(const IoConfig& config) {
  if (const auto* dpdk = std::get_if<io::DpdkConfig>(&config.back_end)) {
    return io::make_dpdk_io(*dpdk);
  }
  return io::make_udp_io(std::get<io::UdpConfig>(config.back_end));
}

}  // namespace

std::unique_ptr<io::PacketIo> make_packet_io(const IoConfig& config) {
  std::unique_ptr<io::PacketIo> packet_io = make_back_end(config);
  if (config.faults) packet_io = std::make_unique<io::FaultyIo>(std::move(packet_io), *config.faults);
  if (config.keys) {
    packet_io = std::make_unique<io::AuthenticatedIo>(std::move(packet_io), *config.keys, io::Direction::kUp);
  }
  return packet_io;
}

void register_io_config(py::module_& module) {
  module.def("has_dpdk", &io::dpdk_available);
  py::class_<IoConfig>(module, "IoConfig")
      .def(py::init<>())
      .def("use_udp", &use_udp, py::kw_only(), py::arg("local"), py::arg("gso"), py::arg("gro"))
      .def("use_dpdk", &use_dpdk, py::kw_only(), py::arg("local"), py::arg("eal_args"), py::arg("devices"),
           py::arg("prefix_length"), py::arg("gateway"), py::arg("neighbours"), py::arg("mtu_bytes"),
           py::arg("verify_udp_checksum"))
      .def("use_key_file", [](IoConfig& config, const std::string& path) { config.keys = io::JobKeys::read(path); })
      .def("use_key",
           [](IoConfig& config, const py::bytes& key) {
             const std::string_view bytes = key;
             io::JobKey copy;
             if (bytes.size() != copy.size()) {
               throw ConfigurationError("a key has " + std::to_string(copy.size()) + " bytes, not " +
                                        std::to_string(bytes.size()));
             }
             std::copy(bytes.begin(), bytes.end(), copy.begin());
             config.keys = io::JobKeys(copy);
           })
      .def("add_faults", &add_faults, py::kw_only(), py::arg("drop"), py::arg("duplicate"), py::arg("reorder"),
           py::arg("seed"));
}

}  // namespace thc::python
