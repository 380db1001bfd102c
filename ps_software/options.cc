#include "options.h"

#include <toml++/toml.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "CLI/CLI.hpp"
#include "io/address.h"
#include "io/name_lookup.h"
#include "job_table.h"
#include "thc/errors.h"
#include "thc/wire_layout.h"

namespace thc::ps {
namespace {

constexpr const char* kDescription =
    "THC parameter server: sums the packed gradient codes of workers by table look-up and sends the sums back.\n"
    "It needs no configuration: jobs are described by the workers that join. Stop it with SIGTERM.";

constexpr const char* kFooter =
    "Sizes take units (64MiB, 1GiB). --config FILE reads TOML whose keys are the long names above, for example\n"
    "  port = 48865\n  threads = 4\n  max-memory = \"4GiB\"\n"
    "Flags win over the file; unknown keys are errors.";

std::string to_text(const toml::node& node) {
  if (const auto text = node.value_exact<std::string>()) return *text;
  std::ostringstream stream;
  node.visit([&](const auto& value) { stream << value; });
  return stream.str();
}

class TomlConfig final : public CLI::ConfigTOML {
 public:
  /// The keys must be options of `app`, which outlives this.
  explicit TomlConfig(const CLI::App& app) : app_(app) {}

  /// Throws CLI::FileError: no TOML, a table, or an unknown key.
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    std::vector<CLI::ConfigItem> entries;
    try {
      for (const auto& [key, node] : toml::parse(input)) {
        CLI::ConfigItem& entry = entries.emplace_back();
        entry.name = key.str();
        if (node.is_table() || node.is_array_of_tables()) fail(node, "[" + entry.name + "] is a table");
        if (app_.get_option_no_throw("--" + entry.name) == nullptr) fail(node, "unknown key '" + entry.name + "'");
        if (const toml::array* values = node.as_array()) {
          for (const toml::node& value : *values) entry.inputs.push_back(to_text(value));
        } else {
          entry.inputs.push_back(to_text(node));
        }
      }
    } catch (const toml::parse_error& error) {
      fail(error, "not valid TOML: " + std::string(error.description()));
    }
    return entries;
  }

 private:
  template <typename Source>
  [[noreturn]] void fail(const Source& where, const std::string& what) const {
    throw CLI::FileError(app_.get_config_ptr()->as<std::string>() + ", line " +
                             std::to_string(where.source().begin.line) + ": " + what +
                             "; keys are the long names of options, such as dpdk-mtu = 9000",
                         CLI::ExitCodes::FileError);
  }

  const CLI::App& app_;
};

/// CLI::Range accepts NaN.
template <typename Number>
CLI::Validator number_between(Number least, Number most) {
  const std::string kind = std::is_integral_v<Number> ? "whole number" : "number";
  const std::string range = CLI::detail::to_string(least) + " to " + CLI::detail::to_string(most);
  return CLI::Validator(
      [=](const std::string& text) {
        Number value = 0;
        const bool within = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
        return within ? std::string{} : "'" + text + "' is not a " + kind + " from " + range;
      },
      CLI::detail::type_name<Number>() + (" in [" + CLI::detail::to_string(least)) + " - " +
          CLI::detail::to_string(most) + "]");
}

const CLI::Validator kProbability = number_between(0.0, 1.0);
const CLI::Validator kRoundsPerEpoch = number_between(0U, 1U << 30);
const CLI::Validator kPort = number_between(0, 65535);
const CLI::Validator kSeconds = number_between(0.001, 1e6);

constexpr const char* kAuto = "auto";

/// kAuto becomes 0.
CLI::Validator slots_or_auto() {
  const CLI::Validator range = number_between(2U, wire::kMaxSlots);
  return CLI::Validator(
      [range](std::string& text) {
        if (text == kAuto) {
          text = "0";
          return std::string{};
        }
        const std::string error = range(text);
        return error.empty() ? error : error + ", nor " + kAuto;
      },
      "auto or " + range.get_description());
}

/// CLI::AsSizeValue accepts -1 as the largest size.
CLI::Validator positive_size() {
  const CLI::AsSizeValue units(false);
  return CLI::Validator(
      [units](std::string& text) {
        const std::string given = text;
        const std::string error = given.starts_with('-') ? "" : units(text);
        const bool positive = !given.starts_with('-') && text != "0";
        return positive ? error : "Value " + given + " is not a positive size, such as 64MiB";
      },
      units.get_description());
}

CLI::Validator own_address() {
  return CLI::Validator(
      [](std::string& text) {
        try {
          text = io::to_string(io::resolve_own_host(text));
        } catch (const Error& error) {
          return std::string(error.what());
        }
        return std::string{};
      },
      "HOST");
}

void add_network(CLI::App& app, Options& o) {
  app.add_option("--listen", o.listen,
                 "Address to listen on; ::, all of IPv4 and IPv6; 0.0.0.0: all of IPv4 (with --dpdk: own address)")
      ->transform(own_address());
  app.add_option("--port", o.port,
                 "UDP port of the first packet thread; the others have those that follow; 0 picks free ones")
      ->check(kPort);
  app.add_option("--threads", o.threads, "Packet threads; slots are dealt to them")
      ->check(number_between(1, static_cast<int>(wire::kMaxShards)));
  app.add_option("--rcvbuf", o.receive_buffer_bytes, "Receive buffer of a thread to ask the kernel for")
      ->transform(positive_size());
  app.add_option(
      "--key-file", o.key_file,
      "Serve jobs with a key in this file (mode 600, or a credential of systemd by its name) and no others: 64 "
      "hexadecimal digits, the key of all jobs, or lines of JOB and digits");
}

void add_limits(CLI::App& app, Options& o) {
  const auto group = "Limits";
  app.add_option("--max-jobs", o.max_jobs, "Jobs at a time")->check(number_between(1, 4096))->group(group);
  app.add_option("--max-jobs-per-address", o.max_jobs_per_address,
                 "Jobs at a time that were started from one IP address; 0: half of --max-jobs, rounded up")
      ->check(number_between(0, 4096))
      ->group(group);
  app.add_option("--slots", o.slots,
                 "Most slots of a job, up to half of them packets in flight; auto: up to " +
                     std::to_string(JobLimits::kMostAutoSlots) + ", as a job's share of --max-memory holds")
      ->transform(slots_or_auto())
      ->default_str(kAuto)
      ->group(group);
  app.add_option("--max-memory", o.max_memory_bytes, "Memory for the slots of all jobs")
      ->transform(positive_size())
      ->group(group);
  app.add_option("--idle-timeout", o.idle_timeout_s, "Seconds of silence after which a job is dropped")
      ->check(kSeconds)
      ->group(group);
  app.add_option("--drain-timeout", o.drain_timeout_s, "Seconds to finish what is in flight after SIGTERM")
      ->check(kSeconds)
      ->group(group);
}

struct RackTexts {
  std::string upstream;
  std::uint32_t rack = 0;
  std::vector<std::string> racks;
};

void add_racks(CLI::App& app, RackTexts& o) {
  const auto group = "Racks";
  CLI::Option* upstream =
      app.add_option("--upstream", o.upstream,
                     "HOST:PORT of the thc-ps that adds the sums of all racks: this one serves a rack")
          ->group(group);
  CLI::Option* rack = app.add_option("--rack", o.rack, "Number of this server's rack, from 0")->group(group);
  CLI::Option* racks = app.add_option("--racks", o.racks, "Workers of all racks: 0-3,4-7 are two racks of four")
                           ->delimiter(',')
                           ->group(group);
  upstream->needs(rack)->needs(racks);
  rack->needs(upstream);
  racks->needs(upstream);
}

void read_racks(const RackTexts& texts, Options& o) {
  if (texts.upstream.empty()) return;
  try {
    const io::IpAddress own = io::resolve_own_host(o.listen);
    const io::Addresses roots = io::resolve_servers({texts.upstream}, wire::kUdpPort).front();
    const auto root = std::ranges::find_if(roots, [own](const io::Endpoint& each) { return own.speaks_to(each.ip); });
    if (root == roots.end()) {
      throw ConfigurationError("the root's address " + io::to_string(roots.front()) +
                               " is of another IP version than " + "--listen " + o.listen +
                               ": use addresses of one version, or --listen [::]");
    }
    if (*root == io::Endpoint{own, o.port}) {
      throw ConfigurationError("this is the server's own address: pass the address of the root, another thc-ps");
    }
    io::check_port_range(root->port, o.threads);
    o.leaf = make_leaf(*root, texts.rack, texts.racks);
  } catch (const Error& error) {
    throw CLI::ValidationError("--upstream, --rack, --racks", error.what());
  }
}

void add_observation(CLI::App& app, Options& o) {
  const auto group = "Observation";
  app.add_option("--metrics-port", o.metrics_port, "TCP port of the Prometheus endpoint /metrics; 0: none")
      ->check(kPort)
      ->group(group);
  app.add_option("--metrics-listen", o.metrics_listen, "Address of the Prometheus endpoint")
      ->transform(own_address())
      ->group(group);
  app.add_option("--log-level", o.log_level, "What to log on standard error")
      ->check(CLI::IsMember({"trace", "debug", "info", "warning", "error", "off"}))
      ->group(group);
}

io::DpdkNeighbour parse_neighbour(const std::string& text) {
  const std::size_t equals = std::min(text.find('='), text.size());
  try {
    const io::DpdkNeighbour neighbour{.ip = io::parse_ipv4(text.substr(0, equals)),
                                      .mac = io::parse_mac(text.substr(std::min(equals + 1, text.size())))};
    if (neighbour.ip == 0) throw ConfigurationError("0.0.0.0");
    return neighbour;
  } catch (const ConfigurationError&) {
    throw CLI::ValidationError("--dpdk-neighbour", "takes IP=MAC, for example 10.0.0.1=02:00:00:00:00:01, not " + text);
  }
}

void add_dpdk(CLI::App& app, DpdkOptions& o) {
  CLI::Option* dpdk =
      app.add_flag("--dpdk", o.enabled, "Use a DPDK device instead of kernel UDP; a queue for each thread");
  dpdk->group("DPDK");
  const auto add = [&](const char* name, auto& value, const char* description) {
    return app.add_option(name, value, description)->group("DPDK")->needs(dpdk);
  };
  add("--eal-args", o.eal_args, "Arguments of the DPDK EAL, in one string: \"-a 0000:3b:00.0\"");
  add("--dpdk-device", o.device, "Device name or PCI address; default: the only one there is");
  add("--dpdk-prefix", o.prefix_length, "Prefix length of the local network")->check(number_between(0, 32));
  add("--dpdk-gateway", o.gateway, "Next hop of other networks")->check(CLI::ValidIPV4);
  const auto add_neighbours = [&o](const std::vector<std::string>& texts) {
    std::ranges::transform(texts, std::back_inserter(o.neighbours), parse_neighbour);
  };
  app.add_option_function<std::vector<std::string>>("--dpdk-neighbour", add_neighbours,
                                                    "IP=MAC of a worker (else found by ARP); may be repeated")
      ->group("DPDK")
      ->needs(dpdk);
  add("--dpdk-mtu", o.mtu_bytes, "MTU of the network")->check(number_between(576, 9978));
}

/// For example "drop=0.01,seed=3".
void read_faults(const std::string& text, Options& o) {
  io::FaultConfig faults;
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    const std::size_t end_of_name = std::min(item.find('='), item.size());
    const std::string name = item.substr(0, end_of_name);
    const std::string value = item.substr(std::min(end_of_name + 1, item.size()));
    const auto read = [&](auto& number, const CLI::Validator& range) {
      const std::string why = range(value);
      if (!why.empty()) throw CLI::ValidationError("--faults", std::string(name).append(": ").append(why));
      CLI::detail::lexical_cast(value, number);
    };
    if (name == "drop")
      read(faults.drop, kProbability);
    else if (name == "duplicate")
      read(faults.duplicate, kProbability);
    else if (name == "reorder")
      read(faults.reorder, kProbability);
    else if (name == "rounds-per-epoch")
      read(o.rounds_per_epoch, kRoundsPerEpoch);
    else if (name == "seed")
      read(faults.seed, number_between(0U, UINT32_MAX));
    else
      throw CLI::ValidationError("--faults",
                                 "'" + name + "' is none of drop, duplicate, reorder, rounds-per-epoch and seed");
  }
  if (faults.drop + faults.duplicate + faults.reorder > 1) {
    throw CLI::ValidationError("--faults", "drop, duplicate and reorder are more than 1 together");
  }
  if (faults.drop > 0 || faults.duplicate > 0 || faults.reorder > 0) o.faults = faults;
}

/// Without a group, --help hides it.
void add_faults(CLI::App& app, Options& o) {
  app.add_option_function<std::string>("--faults", [&o](const std::string& text) { read_faults(text, o); })->group("");
}

void check_together(const Options& o) {
  const io::IpAddress own = io::resolve_own_host(o.listen);
  if (o.dpdk.enabled && (own.is_any() || !own.is_ipv4())) {
    throw CLI::ValidationError("--listen",
                               "--dpdk needs the IPv4 address this server has on the DPDK device; "
                               "IPv6 needs kernel UDP, without --dpdk");
  }
}

}  // namespace

std::optional<int> parse_options(int argc, char** argv, Options& options) {
  CLI::App app(kDescription, "thc-ps");
  app.footer(kFooter);
  app.option_defaults()->always_capture_default();
  app.set_version_flag("--version", "thc-ps " THC_VERSION);
  app.config_formatter(std::make_shared<TomlConfig>(app));
  app.set_config("--config", "", "TOML file with options")->expected(1);
  add_network(app, options);
  add_limits(app, options);
  RackTexts racks;
  add_racks(app, racks);
  add_observation(app, options);
  add_dpdk(app, options.dpdk);
  add_faults(app, options);
  app.final_callback([&] {
    read_racks(racks, options);
    check_together(options);
  });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return std::nullopt;
}

}  // namespace thc::ps
