#include "metrics_endpoint.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

#include "io/address.h"
#include "thc/errors.h"

namespace thc::ps {
namespace {

using std::chrono::steady_clock;

constexpr std::size_t kMaxRequestBytes = 8192;
constexpr std::chrono::seconds kScrapeTime{5};  // a client that is slower is let go
constexpr int kBacklog = 16;
constexpr std::chrono::milliseconds kAfterFailure{100};

io::FileDescriptor open_listener(io::Endpoint listen_on) {
  io::FileDescriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);  // connections of an earlier server linger
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(listen_on.port);
  address.sin_addr.s_addr = htonl(listen_on.ip);
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener.get(), kBacklog) != 0) {
    throw TransportError("cannot serve metrics on " + io::to_string(listen_on) + ": " + std::strerror(errno) +
                         " (choose another --metrics-port or --metrics-listen)");
  }
  return listener;
}

/// Waits for `events` on `fd`; false when the time is over or `stop` is readable.
bool wait_for(int fd, short events, int stop, steady_clock::time_point end) noexcept {
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - steady_clock::now()).count();
    std::array<pollfd, 2> waited{pollfd{fd, events, 0}, pollfd{stop, POLLIN, 0}};
    const int ready = poll(waited.data(), waited.size(), static_cast<int>(std::max<std::int64_t>(left, 0)));
    if (ready < 0 && errno == EINTR) continue;
    return ready > 0 && waited[1].revents == 0;
  }
}

/// The head of a request, as far as it came.
std::string read_request(int connection, int stop, steady_clock::time_point end) {
  std::string request;
  while (request.size() < kMaxRequestBytes && request.find("\r\n\r\n") == std::string::npos) {
    if (!wait_for(connection, POLLIN, stop, end)) break;
    std::array<char, 2048> part;
    const ssize_t bytes = recv(connection, part.data(), part.size(), 0);
    if (bytes <= 0) break;
    request.append(part.data(), static_cast<std::size_t>(bytes));
  }
  return request;
}

void write_all(int connection, std::string_view text, int stop, steady_clock::time_point end) noexcept {
  while (!text.empty() && wait_for(connection, POLLOUT, stop, end)) {
    const ssize_t bytes = send(connection, text.data(), text.size(), MSG_NOSIGNAL);
    if (bytes <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(bytes));
  }
}

std::string response(std::string_view status, std::string_view body) {
  std::string text = "HTTP/1.1 ";
  text += status;
  text += "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nConnection: close\r\nContent-Length: ";
  text += std::to_string(body.size());
  text += "\r\n\r\n";
  text += body;
  return text;
}

}  // namespace

MetricsEndpoint::MetricsEndpoint(io::Endpoint listen_on, std::function<std::string()> text)
    : text_(std::move(text)), listener_(open_listener(listen_on)), stop_(eventfd(0, EFD_CLOEXEC)) {
  if (stop_.get() < 0) {
    throw TransportError(std::string("cannot serve metrics: ") + std::strerror(errno));
  }
  thread_ = std::jthread([this] { run(); });
}

MetricsEndpoint::~MetricsEndpoint() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(stop_.get(), &one, sizeof one);
}

void MetricsEndpoint::run() noexcept {
  for (;;) {
    std::array<pollfd, 2> waited{pollfd{listener_.get(), POLLIN, 0}, pollfd{stop_.get(), POLLIN, 0}};
    if (poll(waited.data(), waited.size(), -1) < 0) continue;
    if (waited[1].revents != 0) return;
    const io::FileDescriptor connection(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (connection.get() >= 0) {
      serve(connection.get());
    } else {  // gone again, or no descriptor left: not in a busy loop
      wait_for(stop_.get(), POLLIN, stop_.get(), steady_clock::now() + kAfterFailure);
    }
  }
}

void MetricsEndpoint::serve(int connection) noexcept {
  const auto end = steady_clock::now() + kScrapeTime;
  try {
    const std::string request = read_request(connection, stop_.get(), end);
    write_all(connection, answer(request), stop_.get(), end);
  } catch (const std::exception&) {  // no memory: the scrape fails, and Prometheus shows it
    return;
  }
  shutdown(connection, SHUT_WR);
}

std::string MetricsEndpoint::answer(const std::string& request) const {
  if (request.find("\r\n\r\n") == std::string::npos) return response("400 Bad Request", "not a request\n");
  if (!request.starts_with("GET ")) return response("405 Method Not Allowed", "only GET\n");
  const std::string path = request.substr(4, request.find_first_of(" ?\r", 4) - 4);
  if (path != "/metrics") return response("404 Not Found", "the metrics are at /metrics\n");
  return response("200 OK", text_());
}

}  // namespace thc::ps
