// What the kernel holds of one UDP socket's datagrams: as much as keeps the interface busy, and no more.
#pragma once

#include <cstddef>
#include <cstdint>

namespace thc::io {

/// Sizes a socket's send buffer, and waits for room in it. A buffer of megabytes would go to the queue of the interface
/// at once, which drops what it does not hold, in silence. On loopback and other ways where the receiver takes over
/// what is sent at once, the buffer never fills and nothing here costs anything.
class SendBuffer {
 public:
  /// How long to wait for room, in milliseconds: while nothing leaves, and altogether.
  struct Patience {
    int fruitless_ms;
    int longest_ms;
  };

  /// `socket` stays the caller's. `most_bytes`: what the buffer may grow to.
  SendBuffer(int socket, std::size_t most_bytes) noexcept;

  /// Whether half of it is free, for what the kernel calls writable.
  bool has_room() const noexcept;

  /// Waits for that, as long as the buffer drains. What has not moved for the whole time waits for a neighbour's MAC
  /// address, not for the interface. `grow`: the buffer then becomes so much larger, if it may.
  bool wait_for_room(Patience patience, bool grow) noexcept;

  /// After ENOBUFS: the interface's queue is full. Waits until some of it has left; false when nothing does.
  bool wait_for_queue() noexcept;

  /// Call before a batch.
  void begin_batch() noexcept;

  /// Most bytes of datagrams to merge into one message: it enters and leaves the buffer as a whole.
  std::size_t message_bytes() const noexcept { return message_bytes_; }

  /// Bytes in the kernel, as it counts them: with its own bookkeeping.
  std::size_t unsent_bytes() const noexcept;

 private:
  void apply() const noexcept;
  void limit_messages() noexcept;
  void note_wait(std::size_t left_bytes) noexcept;

  const int socket_;
  const std::size_t most_bytes_;
  std::size_t room_bytes_;       // for what the interface drains
  std::size_t stuck_bytes_ = 0;  // what it does not
  std::size_t message_bytes_;
  bool waited_ = false;  // in this batch
  // Of the last waits: how many, and the least that was left at the end of one.
  int waits_ = 0;
  std::size_t least_left_bytes_ = SIZE_MAX;
};

}  // namespace thc::io
