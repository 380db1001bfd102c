// Set-up of kernel UDP sockets: everything that may throw, kept away from the packet path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "io/packet_io.h"

namespace thc::io {

/// Owns a file descriptor.
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

/// 0.0.0.0 for [::] on a kernel without IPv6.
Endpoint usable_local(Endpoint local) noexcept;

/// A non-blocking UDP socket for that own address: of AF_INET for IPv4, else of AF_INET6, which speaks IPv4, too.
/// Throws TransportError.
FileDescriptor open_udp_socket(IpAddress local);

/// Of a socket: AF_INET or AF_INET6.
int family_of(int socket) noexcept;

/// Binds; returns the address with the port resolved. Throws TransportError, which for a port in use says what to do.
Endpoint bind_udp_socket(const FileDescriptor& socket, Endpoint local);

/// Asks the kernel to tell of each datagram which own address it came to (IP_PKTINFO, IPV6_PKTINFO). Throws
/// TransportError.
void ask_for_own_address(const FileDescriptor& socket);

/// Asks for a receive buffer of `bytes` (beyond net.core.rmem_max when privileged); returns the bytes granted.
std::size_t grow_receive_buffer(const FileDescriptor& socket, std::size_t bytes) noexcept;

/// Same for the send buffer, which may also shrink; what is in it stays.
void resize_send_buffer(int socket, std::size_t bytes) noexcept;

/// Asks the kernel to tell what becomes of datagrams: a full queue of the interface is ENOBUFS then, no success
/// (IP_RECVERR, IPV6_RECVERR). So are ICMP errors, which say nothing about later datagrams: take_icmp_errors().
void ask_for_errors(const FileDescriptor& socket) noexcept;

/// Marks what is sent as ECN-capable, and asks for the ECN field of what is received (IP_RECVTOS, IPV6_RECVTCLASS).
void use_ecn(const FileDescriptor& socket) noexcept;

/// Takes the errors that wait, which otherwise fill the receive buffer and end each poll(). Returns whether one of them
/// came by ICMP: the last call may have failed for an earlier datagram's sake.
bool take_icmp_errors(int socket) noexcept;

/// Largest UDP payload that goes to `to` in one IP packet on the present route; as on Ethernet when there is no route.
/// `probe`: an unbound UDP socket used for nothing else. Opens none itself, so that it works when descriptors run out.
std::size_t route_max_datagram_bytes(const FileDescriptor& probe, Endpoint to) noexcept;

/// The address that the kernel sends to `to` from; :: when there is no route. `probe`: as above.
IpAddress route_source_ip(const FileDescriptor& probe, Endpoint to) noexcept;

/// Largest UDP payload that the interface with the address of `to` sends in one IP packet; SIZE_MAX where it is none of
/// this host's. Packets of this host to itself take the loopback interface instead, whatever the address.
std::size_t own_interface_max_datagram_bytes(const FileDescriptor& probe, Endpoint to) noexcept;

}  // namespace thc::io
