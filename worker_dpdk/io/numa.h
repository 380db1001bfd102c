// CPUs near a network card.
#pragma once

#include <sched.h>

#include <string>
#include <vector>

namespace thc::io {

/// Those of `cpus` on the NUMA node of the first PCI device that EAL arguments name ("-a 0000:3b:00.0", "--allow=..."):
/// packets and the memory that DPDK takes for them are there. All of `cpus` when there is no such device, its node is
/// unknown, or none of `cpus` is on it. `sysfs`: "/sys".
cpu_set_t cpus_near_device(const std::vector<std::string>& eal_args, const cpu_set_t& cpus, const std::string& sysfs);

}  // namespace thc::io
