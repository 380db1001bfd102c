// Signatures and semantics: byteps_thc/_native/_comm.pyi.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "io/address.h"
#include "io/authenticated_io.h"
#include "io/checked_io.h"
#include "io/dpdk_io.h"
#include "io/faulty_io.h"
#include "io/job_keys.h"
#include "io/name_lookup.h"
#include "io/udp_io.h"
#include "python/bound_session.h"
#include "python/translate_errors.h"
#include "session/inquiry.h"
#include "thc/errors.h"
#include "thc/wire_layout.h"

namespace thc::python {
namespace {

/// Throws ConfigurationError unless finite. Limits to 30 years, which fit every clock.
Duration from_seconds(double seconds, const char* name) {
  if (!std::isfinite(seconds)) {
    throw ConfigurationError(std::string(name) + " = " + std::to_string(seconds) + " is not a number of seconds");
  }
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(std::clamp(seconds, -1e9, 1e9)));
}

/// Calls `look_up()` on a thread of its own: signal handlers run meanwhile, and their exceptions leave it behind.
template <typename LookUp>
auto wait_for(LookUp look_up) {
  std::packaged_task<decltype(look_up())()> task(std::move(look_up));
  auto result = task.get_future();
  std::thread(std::move(task)).detach();
  wait_in_slices(std::nullopt, [&](Duration slice) { return result.wait_for(slice) == std::future_status::ready; });
  return result.get();
}

std::vector<io::Addresses> resolve_servers(const std::vector<std::string>& servers, double lookup_s) {
  const auto patience = std::chrono::duration_cast<std::chrono::milliseconds>(from_seconds(lookup_s, "lookup_s"));
  return wait_for([=] { return io::resolve_servers(servers, wire::kUdpPort, patience); });
}

struct IoConfig {
  std::variant<io::UdpConfig, io::DpdkConfig> back_end;
  std::optional<io::FaultConfig> faults;
  std::optional<io::JobKeys> keys;
};

io::Endpoint resolve_local(const std::string& local) {
  return wait_for([local] {
    const auto [host, port] = io::split_port(local, 0);
    return io::Endpoint{io::resolve_own_host(host), port};
  });
}

void use_udp(IoConfig& config, const std::string& local, bool gso, bool gro) {
  config.back_end = io::UdpConfig{.local = io::usable_local(resolve_local(local)), .gso = gso, .gro = gro};
}

void use_dpdk(IoConfig& config, const std::string& local, std::vector<std::string> eal_args,
              std::vector<std::string> devices, unsigned prefix_length, const std::string& gateway,
              const std::vector<std::pair<std::string, std::string>>& neighbours, std::uint16_t mtu_bytes) {
  io::DpdkConfig dpdk;
  dpdk.eal_args = std::move(eal_args);
  dpdk.devices = std::move(devices);
  dpdk.local = resolve_local(local);
  dpdk.prefix_length = prefix_length;
  dpdk.gateway_ip = gateway.empty() ? 0 : io::parse_ipv4(gateway);
  for (const auto& [ip, mac] : neighbours) {
    dpdk.neighbours.push_back({.ip = io::parse_ipv4(ip), .mac = io::parse_mac(mac)});
  }
  dpdk.mtu_bytes = mtu_bytes;
  config.back_end = std::move(dpdk);
}

void add_faults(IoConfig& config, double drop, double duplicate, double reorder, std::uint64_t seed) {
  config.faults = io::FaultConfig{.drop = drop, .duplicate = duplicate, .reorder = reorder, .seed = seed};
}

std::unique_ptr<io::PacketIo> make_back_end(const IoConfig& config) {
  if (const auto* dpdk = std::get_if<io::DpdkConfig>(&config.back_end)) {
    return io::make_dpdk_io(*dpdk);
  }
  return io::make_udp_io(std::get<io::UdpConfig>(config.back_end));
}

/// May take seconds without the GIL. Throws ConfigurationError, TransportError or DpdkUnavailableError.
std::unique_ptr<io::PacketIo> open_packet_io(const IoConfig& config) {
  const py::gil_scoped_release release;
  std::unique_ptr<io::PacketIo> packet_io = make_back_end(config);
  if (config.faults) packet_io = std::make_unique<io::FaultyIo>(std::move(packet_io), *config.faults);
  if (!config.keys) return std::make_unique<io::CheckedIo>(std::move(packet_io));
  return std::make_unique<io::AuthenticatedIo>(std::move(packet_io), *config.keys, io::Direction::kUp);
}

/// No server would answer a job whose key is missing.
void check_key(const SessionConfig& config, const IoConfig& io_config) {
  if (!io_config.keys || io_config.keys->derive(config.job_id, io::Direction::kUp)) return;
  const std::string job = std::to_string(config.job_id);
  throw ConfigurationError("the key file has keys for single jobs, and none for job " + job + ": add a line \"" + job +
                           " KEY\" here and on the servers, or use a job that has a key");
}

/// Drops server addresses that this worker cannot send to.
void drop_unusable(SessionConfig& config, const IoConfig& io_config) {
  const io::IpAddress local = std::visit([](const auto& back_end) { return back_end.local.ip; }, io_config.back_end);
  for (std::vector<io::Endpoint>& addresses : config.addresses) {
    const std::string first = io::to_string(addresses.front());
    std::erase_if(addresses, [local](const io::Endpoint& each) { return !local.speaks_to(each.ip); });
    if (!addresses.empty()) continue;
    if (std::holds_alternative<io::DpdkConfig>(io_config.back_end)) {
      throw ConfigurationError("DPDK supports IPv4 only, and server " + first +
                               " has an IPv6 address: use the server's IPv4 address, or kernel UDP (backend=\"udp\")");
    }
    throw ConfigurationError("server " + first + " cannot be reached from local address " + io::to_string(local) +
                             ", which is of the other IP version: use a server's address of the same version" +
                             (local.is_any() ? "" : ", or leave local out"));
  }
}

/// Picks the first address that answers within half of the connect timeout, or else the first.
void choose_addresses(SessionConfig& config, io::PacketIo& packet_io, TimePoint began) {
  const TimePoint deadline = began + config.connect_timeout / 2;
  for (std::size_t server = 0; server < config.addresses.size(); ++server) {
    std::vector<io::Endpoint>& addresses = config.addresses[server];
    for (Duration patience{250'000}; addresses.size() > 1; patience = std::min(2 * patience, Duration{4'000'000})) {
      SessionConfig question = resolve(config, io::kMaxUdpPayloadBytes);
      question.servers = addresses;
      std::vector<Presence> presences;
      wait_in_slices(0, [&](Duration) {
        presences = ask_servers(question, packet_io, std::min(patience, elapsed(Clock::now(), deadline)), patience / 4);
        return false;
      });
      const auto answer = std::ranges::find_if(presences, [](Presence each) { return each != Presence::kSilent; });
      if (answer != presences.end()) {
        addresses = {addresses[static_cast<std::size_t>(answer - presences.begin())]};
      } else if (Clock::now() >= deadline) {
        addresses.resize(1);
      }
    }
    config.servers[server] = addresses.front();
  }
}

/// Blocks until connected. Automatic packets have the size of the path, unless the job or server (a switch, a worker
/// with a smaller MTU) needs smaller ones. Other workers then follow.
std::unique_ptr<BoundSession> connect(SessionConfig config, const IoConfig& io_config) {
  check_key(config, io_config);
  drop_unusable(config, io_config);
  const bool is_auto = config.codes_per_packet == 0;
  for (;;) {
    try {
      auto packet_io = open_packet_io(io_config);
      const TimePoint began = Clock::now();  // without the seconds that a device takes to start
      choose_addresses(config, *packet_io, began);
      return std::make_unique<BoundSession>(config, std::move(packet_io), began);
    } catch (const ServerRefusedError& error) {
      if (!is_auto || error.codes_per_packet() == 0) {
        throw;
      }
      config.codes_per_packet = error.codes_per_packet();  // fewer each time
      config.others_follow = true;
    }
  }
}

constexpr std::array<const char*, 4> kPresenceNames{"silent", "there", "leaving", "other"};

std::vector<std::string> ask(const SessionConfig& config, const IoConfig& io_config, double timeout_s, double pace_s) {
  const auto packet_io = open_packet_io(io_config);
  const Duration timeout = from_seconds(timeout_s, "timeout_s"), pace = from_seconds(pace_s, "pace_s");
  const py::gil_scoped_release release;
  std::vector<std::string> names;
  for (const Presence presence : ask_servers(config, *packet_io, timeout, pace)) {
    names.emplace_back(kPresenceNames[static_cast<std::size_t>(presence)]);
  }
  return names;
}

void register_session_config(py::module_& module) {
  module.def(
      "resolve_server",
      [](const std::string& server, double lookup_s) {
        return io::to_string(resolve_servers({server}, lookup_s)[0][0]);
      },
      py::arg("server"), py::kw_only(), py::arg("lookup_s"));
  py::class_<SessionConfig>(module, "SessionConfig")
      .def(py::init([](unsigned bits, const std::vector<std::uint16_t>& table) {
             return SessionConfig{.table = LookupTable(bits, table)};
           }),
           py::kw_only(), py::arg("bits"), py::arg("table"))
      .def(
          "set_servers",
          [](SessionConfig& config, const std::vector<std::string>& servers, double lookup_s) {
            config.addresses = resolve_servers(servers, lookup_s);
            config.servers.clear();
            for (const io::Addresses& addresses : config.addresses) config.servers.push_back(addresses.front());
          },
          py::arg("servers"), py::kw_only(), py::arg("lookup_s"))
      .def_property_readonly("servers",
                             [](const SessionConfig& config) {
                               std::vector<std::string> texts;
                               for (const io::Endpoint server : config.servers) texts.push_back(io::to_string(server));
                               return texts;
                             })
      .def(
          "set_job",
          [](SessionConfig& config, std::uint16_t job, std::uint8_t worker, std::uint8_t workers, std::uint8_t quorum) {
            config.job_id = job;
            config.worker_id = worker;
            config.num_workers = workers;
            config.quorum = quorum;
          },
          py::kw_only(), py::arg("job"), py::arg("worker"), py::arg("workers"), py::arg("quorum"))
      .def(
          "set_timeouts",
          [](SessionConfig& config, double connect_s, double operation_s, double loss_s) {
            config.connect_timeout = from_seconds(connect_s, "connect_s");
            config.operation_timeout = from_seconds(operation_s, "operation_s");
            config.loss_timeout = from_seconds(loss_s, "loss_s");
          },
          py::kw_only(), py::arg("connect_s"), py::arg("operation_s"), py::arg("loss_s"))
      .def_readwrite("loss_tolerant", &SessionConfig::loss_tolerant)
      .def_readwrite("value_bits", &SessionConfig::value_bits)
      .def_readwrite("codes_per_packet", &SessionConfig::codes_per_packet)
      .def_readwrite("run", &SessionConfig::run)
      .def_readwrite("settings_hash", &SessionConfig::settings_hash)
      .def_readwrite("arithmetic", &SessionConfig::arithmetic)
      .def_property_readonly("quorum", [](const SessionConfig& config) { return config.quorum; });
}

void register_session(py::module_& module) {
  module.def("has_dpdk", &io::dpdk_available);
  py::class_<IoConfig>(module, "IoConfig")
      .def(py::init<>())
      .def("use_udp", &use_udp, py::kw_only(), py::arg("local"), py::arg("gso"), py::arg("gro"))
      .def("use_dpdk", &use_dpdk, py::kw_only(), py::arg("local"), py::arg("eal_args"), py::arg("devices"),
           py::arg("prefix_length"), py::arg("gateway"), py::arg("neighbours"), py::arg("mtu_bytes"))
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
  module.def("ask_servers", &ask, py::arg("config"), py::arg("io"), py::kw_only(), py::arg("timeout_s"),
             py::arg("pace_s"));
  py::class_<BoundOperation>(module, "Operation").def_property_readonly("done", &BoundOperation::done);
  py::class_<BoundSession>(module, "Session")
      .def(py::init(&connect), py::arg("config"), py::arg("io"))
      .def("push_norms", &BoundSession::push_norms, py::arg("partition"), py::arg("norms"), py::arg("max_norms"),
           py::kw_only(), py::arg("compared") = 0)
      .def("push_codes", &BoundSession::push_codes, py::arg("partition"), py::arg("codes"), py::arg("aggregate"),
           py::arg("contributions"))
      .def("wait", &BoundSession::wait, py::arg("operation"), py::arg("timeout_s"))
      .def("close", &BoundSession::close)
      .def("counters", &BoundSession::counters)
      .def("unanswered", &BoundSession::unanswered)
      .def("heard", &BoundSession::heard)
      .def_property_readonly("is_of_switch", &BoundSession::is_of_switch)
      .def_property_readonly("config", &BoundSession::config);
}

}  // namespace
}  // namespace thc::python

PYBIND11_MODULE(_comm, module) {
  module.doc() = "A worker's session with thc-ps or a switch (see _comm.pyi)";
  module.attr("ARITHMETIC") = thc::wire::kArithmeticVersion;
  thc::python::register_exceptions(module);
  thc::python::register_session_config(module);
  thc::python::register_session(module);
}
