// EAL arguments that follow from others. Knows nothing of DPDK, so any build can test it.
#pragma once

#include <sched.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace thc::io {

/// Whether arguments have one of these options: "--long", also as "--long=value", or "-s", also as "-svalue".
bool has_option(const std::vector<std::string>& args, std::initializer_list<std::string_view> names);

/// What to change when EAL does not start with these arguments, which users give.
std::string start_hint(const std::vector<std::string>& eal_args);

/// What to change when EAL runs with these arguments and has no device.
std::string device_hint(const std::vector<std::string>& eal_args);

/// EAL arguments with what virtual devices need for `queues` queues, unless they say it themselves: af_packet gets
/// "qpairs". A memif connects to any peer, and with one of fewer queues two threads would use one ring: it gets a
/// "secret" that tells the number, so that such peers do not connect.
std::vector<std::string> with_queue_arguments(std::vector<std::string> eal_args, std::uint16_t queues);

/// Those of `cpus` on the NUMA node of the first PCI device that EAL arguments name ("-a 0000:3b:00.0", "--allow=..."):
/// packets and the memory that DPDK takes for them are there. All of `cpus` when there is no such device, its node is
/// unknown, or none of `cpus` is on it. `sysfs`: "/sys".
cpu_set_t cpus_near_device(const std::vector<std::string>& eal_args, const cpu_set_t& cpus, const std::string& sysfs);

}  // namespace thc::io
