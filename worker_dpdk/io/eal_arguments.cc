#include "io/eal_arguments.h"

#include <algorithm>

namespace thc::io {
namespace {

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

}  // namespace thc::io
