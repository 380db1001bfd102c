// Derives EAL arguments. Has no DPDK dependency, so any build can test it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace thc::io {

/// Matches "--long", "--long=value", "-s" and "-svalue".
bool has_option(const std::vector<std::string>& args, std::initializer_list<std::string_view> names);

/// Advice for users if EAL does not start with these arguments.
std::string start_hint(const std::vector<std::string>& eal_args);

/// Advice for users if EAL runs with these arguments but has no device.
std::string device_hint(const std::vector<std::string>& eal_args);

/// Adds "qpairs" to af_packet and "secret" to memif devices, unless present. memif connects to any peer; a peer with
/// fewer queues would make two threads share a ring, so the secret contains their number.
std::vector<std::string> with_queue_arguments(std::vector<std::string> eal_args, std::uint16_t queues);

}  // namespace thc::io
