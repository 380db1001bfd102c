#include "simulation/tcp_flow.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace thc::simulation {
namespace {

constexpr std::uint32_t kSegmentBytes = kMaxDatagramBytes;
constexpr std::uint32_t kAcknowledgmentBytes = 24;
constexpr double kLargestWindow = 4000;  // of a receive buffer of 6 MB, as Linux grows it to
constexpr std::uint64_t kReordering = 3;
constexpr Picoseconds kShortestTimeout = picoseconds(.2);
constexpr Picoseconds kFirstTimeout = picoseconds(1);
// CUBIC, RFC 9438.
constexpr double kCubic = .4;
constexpr double kCubicDecrease = .7;

}  // namespace

TcpFlow::TcpFlow(Network& network, io::Endpoint from, io::Endpoint to, Growth growth)
    : network_(network), from_(from), to_(to), growth_(growth), timeout_(network.events(), [this] { time_out(); }) {
  network.bind(from, sender_);
  network.bind(to, receiver_);
}

void TcpFlow::send() {
  while (!sender_.blocked() && static_cast<double>(in_flight_) < std::min(window_, kLargestWindow)) {
    Datagram* datagram = network_.pool().take();
    datagram->from = from_;
    datagram->to = to_;
    datagram->size_bytes = kSegmentBytes;
    datagram->number = first_ + segments_.size();
    segments_.push_back({.sent_at = network_.events().now(), .answered = false});
    ++in_flight_;
    network_.send(sender_, datagram);
  }
  const Picoseconds timeout = smoothed_ == 0 ? kFirstTimeout : std::max(smoothed_ + 4 * variation_, kShortestTimeout);
  timeout_.set(network_.events().now() + (timeout << std::min(timeouts_, 6U)));
}

void TcpFlow::acknowledge(Datagram* datagram) {
  receiver_.bytes += datagram->wire_bytes();
  datagram->size_bytes = kAcknowledgmentBytes;
  datagram->from = to_;
  datagram->to = from_;
  network_.send(receiver_, datagram);
}

void TcpFlow::take_acknowledgment(Datagram* datagram) {
  const std::uint64_t number = datagram->number;
  network_.pool().give_back(datagram);
  if (number < first_ || segments_[number - first_].answered) return;
  Segment& segment = segments_[number - first_];
  segment.answered = true;
  --in_flight_;
  timeouts_ = 0;
  highest_ = std::max(highest_, number);
  const Picoseconds round_trip = network_.events().now() - segment.sent_at;
  if (smoothed_ == 0) {
    smoothed_ = round_trip;
    variation_ = round_trip / 2;
  } else {
    variation_ += (std::abs(smoothed_ - round_trip) - variation_) / 4;
    smoothed_ += (round_trip - smoothed_) / 8;
  }
  find_losses();
  if (number >= recovered_at_) grow(round_trip);
  send();
}

void TcpFlow::find_losses() {
  while (!segments_.empty() && (segments_.front().answered || first_ + kReordering <= highest_)) {
    if (!segments_.front().answered) {
      --in_flight_;
      if (first_ >= recovered_at_) shrink(false);
    }
    segments_.pop_front();
    ++first_;
  }
}

void TcpFlow::grow(Picoseconds round_trip) {
  if (window_ < threshold_) {
    window_ += 1;
  } else if (growth_ == Growth::kNewReno || window_at_loss_ == 0) {
    window_ += 1 / window_;
  } else {
    const double since_s = seconds(network_.events().now() - lost_at_ + round_trip);
    const double back_s = std::cbrt(window_at_loss_ * (1 - kCubicDecrease) / kCubic);
    const double target = kCubic * std::pow(since_s - back_s, 3) + window_at_loss_;
    window_ += std::clamp((target - window_) / window_, 1 / (100 * window_), .5);
  }
}

void TcpFlow::shrink(bool timed_out) {
  const double left = growth_ == Growth::kCubic ? kCubicDecrease : .5;
  window_at_loss_ = window_;
  lost_at_ = network_.events().now();
  threshold_ = std::max(window_ * left, 2.0);
  window_ = timed_out ? 1 : threshold_;
  recovered_at_ = first_ + segments_.size();
}

void TcpFlow::time_out() {
  if (!sender_.blocked()) {  // else they have not left
    shrink(true);
    ++timeouts_;
    first_ += segments_.size();
    segments_.clear();
    in_flight_ = 0;
  }
  send();
}

}  // namespace thc::simulation
