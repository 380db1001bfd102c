#include "io/eal_arguments.h"

#include <algorithm>
#include <charconv>
#include <fstream>

namespace thc::io {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// The first allowed device's PCI address with its domain; empty: none. Drops the arguments after a comma.
std::string first_pci_device(const std::vector<std::string>& eal_args) {
  for (std::size_t i = 0; i < eal_args.size(); ++i) {
    const std::string_view argument = eal_args[i];
    std::string_view value;
    if (argument == "-a" || argument == "--allow") {
      value = i + 1 < eal_args.size() ? std::string_view(eal_args[i + 1]) : std::string_view();
    } else if (argument.starts_with("--allow=")) {
      value = argument.substr(sizeof "--allow=" - 1);
    } else if (argument.starts_with("-a")) {
      value = argument.substr(2);
    } else {
      continue;
    }
    const std::string_view address = value.substr(0, value.find(','));
    std::string full(address.find(':') == address.rfind(':') ? "0000:" : "");  // 3b:00.0
    full.append(address);
    return full;
  }
  return {};
}

void add_list(std::string_view list, cpu_set_t& cpus) {
  while (!list.empty()) {
    const std::string_view range = list.substr(0, list.find(','));
    list.remove_prefix(std::min(range.size() + 1, list.size()));
    int first = 0;
    const auto [end, error] = std::from_chars(range.data(), range.data() + range.size(), first);
    int last = first;
    if (end != range.data() + range.size() && *end == '-') {
      std::from_chars(end + 1, range.data() + range.size(), last);
    }
    for (int cpu = first; error == std::errc{} && cpu <= last && cpu < CPU_SETSIZE; ++cpu) {
      CPU_SET(cpu, &cpus);
    }
  }
}

void add_argument(std::string& vdev, std::string_view key, const std::string& value) {
  std::string begin(",");
  begin.append(key).append("=");
  if (vdev.find(begin) == std::string::npos) {
    vdev += begin + value;
  }
}

}  // namespace

bool has_option(const std::vector<std::string>& args, std::initializer_list<std::string_view> names) {
  return std::any_of(args.begin(), args.end(), [&](std::string_view arg) {
    return std::any_of(names.begin(), names.end(), [&](std::string_view name) {
      const bool is_long = name.starts_with("--");
      return is_long ? arg == name || (arg.starts_with(name) && arg.substr(name.size()).starts_with('='))
                     : arg.starts_with(name) && !arg.starts_with("--");
    });
  });
}

std::string start_hint(const std::vector<std::string>& eal_args) {
  const bool sized = has_option(eal_args, {"-m", "--socket-mem"});
  if (!has_option(eal_args, {"--no-huge"})) {
    return std::string("without huge pages or without root, add --no-huge") + (sized ? "" : " -m 512");
  }
  if (has_option(eal_args, {"--in-memory"})) {
    return "EAL refuses --in-memory together with --no-huge: omit --in-memory";
  }
  return std::string("correct the options that they name") +
         (sized ? "; -m is MiB that must be free on this host" : ", and add -m 512 (MiB)");
}

std::string device_hint(const std::vector<std::string>& eal_args) {
  if (has_option(eal_args, {"-a", "--allow", "--vdev"})) {
    return "EAL's messages above say what is wrong with the device that -a or --vdev names";
  }
  return "bind a network card to vfio-pci (dpdk-devbind.py) and name it by -a, or add a virtual one, for example "
         "--vdev=net_af_packet0,iface=eth1";
}

std::vector<std::string> with_queue_arguments(std::vector<std::string> eal_args, std::uint16_t queues) {
  if (queues == 1) {
    return eal_args;
  }
  const std::string number = std::to_string(queues);
  for (std::size_t i = 0; i < eal_args.size(); ++i) {
    const bool is_vdev = eal_args[i].starts_with("--vdev=") || (i > 0 && eal_args[i - 1] == "--vdev");
    if (is_vdev && eal_args[i].find("net_af_packet") != std::string::npos) {
      add_argument(eal_args[i], "qpairs", number);
    } else if (is_vdev && eal_args[i].find("net_memif") != std::string::npos) {
      add_argument(eal_args[i], "secret", "thc-queues-" + number);
    }
  }
  return eal_args;
}

cpu_set_t cpus_near_device(const std::vector<std::string>& eal_args, const cpu_set_t& cpus, const std::string& sysfs) {
  const std::string device = first_pci_device(eal_args);
  const std::string node = device.empty() ? "" : first_line(sysfs + "/bus/pci/devices/" + device + "/numa_node");
  if (node.empty() || node.starts_with('-')) {  // -1: unknown
    return cpus;
  }
  cpu_set_t near;
  CPU_ZERO(&near);
  add_list(first_line(sysfs + "/devices/system/node/node" + node + "/cpulist"), near);
  CPU_AND(&near, &near, &cpus);
  return CPU_COUNT(&near) > 0 ? near : cpus;
}

}  // namespace thc::io
