#include "io/send_buffer.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

#include "io/udp_socket.h"

namespace thc::io {
namespace {

// The kernel charges about 2300 bytes for a frame of 1500: 14 frames and the next message fit a queue of 100 kB.
constexpr std::size_t kLeastRoomBytes = 32U << 10;
constexpr std::size_t kMostRoomBytes = 4U << 20;
constexpr int kWaitsToShrink = 64;

constexpr std::size_t kDrainedBytes = 16U << 10;  // room after which a full queue of the interface is usable again
constexpr std::chrono::microseconds kQueuePoll{250};
constexpr int kFruitlessQueuePolls = 1000;
constexpr int kOthersQueuePolls = 4;  // if other senders fill the queue

}  // namespace

SendBuffer::SendBuffer(int socket, std::size_t most_bytes) noexcept
    : socket_(socket),
      most_bytes_(std::max(most_bytes, kLeastRoomBytes)),
      room_bytes_(kLeastRoomBytes),
      message_bytes_(kMaxUdpPayloadBytes) {
  apply();
}

void SendBuffer::apply() const noexcept {
  // POLLOUT needs half of the buffer free; twice the stuck bytes leave room_bytes_ to the rest.
  const std::size_t bytes = std::min(room_bytes_ + 2 * stuck_bytes_, most_bytes_);
  resize_send_buffer(socket_, bytes / 2);  // the kernel doubles it
}

std::size_t SendBuffer::unsent_bytes() const noexcept {
  int bytes = 0;
  return ioctl(socket_, SIOCOUTQ, &bytes) == 0 ? static_cast<std::size_t>(bytes) : 0;
}

bool SendBuffer::has_room() const noexcept {
  pollfd writable{socket_, POLLOUT, 0};
  return poll(&writable, 1, 0) > 0 && (writable.revents & POLLOUT) != 0;
}

void SendBuffer::begin_batch() noexcept {
  if (!waited_) {
    message_bytes_ = std::min(2 * message_bytes_, kMaxUdpPayloadBytes);
  }
  waited_ = false;
  if (stuck_bytes_ != 0) {
    const std::size_t left_bytes = unsent_bytes();
    if (left_bytes < stuck_bytes_) {
      stuck_bytes_ = left_bytes;
      apply();
    }
  }
}

/// On a slow path, a large message would let the buffer drain before the next one fits.
void SendBuffer::limit_messages() noexcept {
  waited_ = true;
  message_bytes_ = std::min(room_bytes_ / 2, kMaxUdpPayloadBytes);
}

bool SendBuffer::wait_for_room(Patience patience, bool grow) noexcept {
  limit_messages();
  pollfd writable{socket_, POLLOUT, 0};
  std::size_t left_bytes = unsent_bytes();
  int fruitless = 0;
  for (int waits = 0; waits < patience.longest_ms && fruitless < patience.fruitless_ms; ++waits) {
    if (poll(&writable, 1, 1) > 0) {
      if ((writable.revents & POLLOUT) != 0) {
        note_wait(unsent_bytes());
        return true;
      }
      take_icmp_errors(socket_);
    }
    const std::size_t now_bytes = unsent_bytes();
    fruitless = now_bytes < left_bytes ? 0 : fruitless + 1;
    left_bytes = now_bytes;
  }
  if (grow && fruitless >= patience.fruitless_ms && left_bytes > stuck_bytes_) {
    stuck_bytes_ = left_bytes;
    apply();
    return has_room();
  }
  return false;
}

/// An empty buffer came too late to keep the interface busy; a buffer that keeps a quarter each time is too large.
void SendBuffer::note_wait(std::size_t left_bytes) noexcept {
  left_bytes -= std::min(left_bytes, stuck_bytes_);
  least_left_bytes_ = std::min(least_left_bytes_, left_bytes);
  std::size_t room_bytes = room_bytes_;
  if (left_bytes == 0) {
    room_bytes = std::min(2 * room_bytes_, kMostRoomBytes);
  } else if (++waits_ < kWaitsToShrink) {
    return;
  } else if (least_left_bytes_ > room_bytes_ / 4) {
    room_bytes = std::max(room_bytes_ / 2, kLeastRoomBytes);
  }
  waits_ = 0;
  least_left_bytes_ = SIZE_MAX;
  if (room_bytes != room_bytes_) {
    room_bytes_ = room_bytes;
    apply();
    limit_messages();
  }
}

bool SendBuffer::wait_for_queue() noexcept {
  room_bytes_ = std::max(room_bytes_ / 2, kLeastRoomBytes);
  stuck_bytes_ = 0;
  apply();
  limit_messages();
  const std::size_t before_bytes = unsent_bytes();
  const int most_polls = before_bytes == 0 ? kOthersQueuePolls : kFruitlessQueuePolls;
  for (int polls = 0; polls < most_polls; ++polls) {
    std::this_thread::sleep_for(kQueuePoll);
    const std::size_t left_bytes = unsent_bytes();
    if (left_bytes + kDrainedBytes <= before_bytes || (left_bytes == 0 && before_bytes != 0)) return true;
  }
  return before_bytes == 0;
}

}  // namespace thc::io
