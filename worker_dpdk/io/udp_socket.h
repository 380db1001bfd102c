// Set-up of kernel UDP sockets. Functions that may throw stay here, off the packet path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "io/packet_io.h"

namespace thc::io {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) noexcept : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();
  int get() const noexcept { return fd_; }

 private:
  int fd_ = -1;
};

/// On a kernel without IPv6, [::] becomes 0.0.0.0.
Endpoint usable_local(Endpoint local) noexcept;

/// Non-blocking; AF_INET6 also speaks IPv4. Throws TransportError.
FileDescriptor open_udp_socket(IpAddress local);
int family_of(int socket) noexcept;

/// Returns the address with the port resolved. Throws TransportError.
Endpoint bind_udp_socket(const FileDescriptor& socket, Endpoint local);

/// Makes the kernel report each datagram's local address (IP_PKTINFO, IPV6_PKTINFO). Throws TransportError.
void ask_for_own_address(const FileDescriptor& socket);

/// `bytes` may exceed net.core.rmem_max if privileged; returns the granted size.
std::size_t grow_receive_buffer(const FileDescriptor& socket, std::size_t bytes) noexcept;

/// The buffer may also shrink; its content stays.
void resize_send_buffer(int socket, std::size_t bytes) noexcept;

/// Makes the kernel report drops: ENOBUFS for a full queue of the interface (IP_RECVERR, IPV6_RECVERR). Also reports
/// ICMP errors, which concern earlier datagrams: see take_icmp_errors().
void ask_for_errors(const FileDescriptor& socket) noexcept;
void use_ecn(const FileDescriptor& socket) noexcept;

/// Clears waiting errors, which would fill the receive buffer and end each poll(). Returns whether any was ICMP: an
/// earlier datagram may then have failed the last call.
bool take_icmp_errors(int socket) noexcept;

/// Largest UDP payload to `to` in one IP packet; Ethernet's without a route. `probe`: an unbound UDP socket for this
/// use alone, so that it works when descriptors run out.
std::size_t route_max_datagram_bytes(const FileDescriptor& probe, Endpoint to) noexcept;

/// The source address that the kernel picks for `to`; :: without a route.
IpAddress route_source_ip(const FileDescriptor& probe, Endpoint to) noexcept;

/// The interface's limit if `to` is this host's, else SIZE_MAX. Packets of a host to itself use loopback instead.
std::size_t own_interface_max_datagram_bytes(const FileDescriptor& probe, Endpoint to) noexcept;

}  // namespace thc::io
