// Serves the metrics to Prometheus: HTTP GET /metrics, one scrape after another, on a thread of its own.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "io/packet_io.h"
#include "io/udp_socket.h"

namespace thc::ps {

class MetricsEndpoint {
 public:
  /// Listens and starts. `text` is called for every scrape, on the endpoint's thread. Throws TransportError.
  MetricsEndpoint(io::Endpoint listen, std::function<std::string()> text);
  ~MetricsEndpoint();
  MetricsEndpoint(const MetricsEndpoint&) = delete;
  MetricsEndpoint& operator=(const MetricsEndpoint&) = delete;

 private:
  void run() noexcept;
  void serve(int connection) noexcept;
  std::string answer(const std::string& request) const;

  std::function<std::string()> text_;
  io::FileDescriptor listener_;
  io::FileDescriptor stop_;  ///< readable once the thread must end
  std::jthread thread_;      // last: it ends before what it uses
};

}  // namespace thc::ps
