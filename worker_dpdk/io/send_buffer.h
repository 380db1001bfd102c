#pragma once

#include <cstddef>
#include <cstdint>

namespace thc::io {

/// Keeps a socket's send buffer just large enough for the interface, whose queue drops the excess silently. On loopback
/// the receiver takes datagrams at once: the buffer never fills, and this costs nothing.
class SendBuffer {
 public:
  /// Without progress, and altogether.
  struct Patience {
    int fruitless_ms;
    int longest_ms;
  };
  /// The caller owns `socket`.
  SendBuffer(int socket, std::size_t most_bytes) noexcept;
  /// Whether half of the buffer is free: the kernel's condition for writable.
  bool has_room() const noexcept;
  /// Waits while the buffer drains. Bytes that never move lack a neighbour's MAC address; the interface is not at
  /// fault. `grow`: enlarge the buffer by these bytes, up to most_bytes.
  bool wait_for_room(Patience patience, bool grow) noexcept;

  /// After ENOBUFS, waits until the interface's queue drains; returns false if nothing leaves.
  bool wait_for_queue() noexcept;

  void begin_batch() noexcept;
  /// A message enters and leaves the buffer as a whole.
  std::size_t message_bytes() const noexcept { return message_bytes_; }
  /// In the kernel's units, with its bookkeeping.
  std::size_t unsent_bytes() const noexcept;

 private:
  void apply() const noexcept;
  void limit_messages() noexcept;
  void note_wait(std::size_t left_bytes) noexcept;

  const int socket_;
  const std::size_t most_bytes_;
  std::size_t room_bytes_;       // for the bytes that the interface drains
  std::size_t stuck_bytes_ = 0;  // bytes that it does not drain
  std::size_t message_bytes_;
  bool waited_ = false;  // in this batch
  // Number of the last waits, and the fewest bytes left after one.
  int waits_ = 0;
  std::size_t least_left_bytes_ = SIZE_MAX;
};

}  // namespace thc::io
