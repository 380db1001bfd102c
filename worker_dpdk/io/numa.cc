#include "io/numa.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string_view>

namespace thc::io {
namespace {

/// The first line of a file, or nothing.
std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// The PCI address of the first allowed device, with its domain; without what follows a comma. Empty: none.
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
    const std::string address(value.substr(0, value.find(',')));
    return address.find(':') == address.rfind(':') ? "0000:" + address : address;  // 3b:00.0
  }
  return {};
}

/// The numbers of a list such as "0-3,8", added to `cpus`.
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

}  // namespace

cpu_set_t cpus_near_device(const std::vector<std::string>& eal_args, const cpu_set_t& cpus, const std::string& sysfs) {
  const std::string device = first_pci_device(eal_args);
  const std::string node = device.empty() ? "" : first_line(sysfs + "/bus/pci/devices/" + device + "/numa_node");
  if (node.empty() || node.starts_with('-')) {  // -1: the machine does not say
    return cpus;
  }
  cpu_set_t near;
  CPU_ZERO(&near);
  add_list(first_line(sysfs + "/devices/system/node/node" + node + "/cpulist"), near);
  CPU_AND(&near, &near, &cpus);
  return CPU_COUNT(&near) > 0 ? near : cpus;
}

}  // namespace thc::io
