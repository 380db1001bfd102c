// What a service manager is told (systemd, Type=notify): sd_notify(3)'s protocol.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace thc::ps {

class ServiceManager {
 public:
  /// Nobody listens unless NOTIFY_SOCKET names a socket.
  ServiceManager();
  ~ServiceManager();
  ServiceManager(const ServiceManager&) = delete;
  ServiceManager& operator=(const ServiceManager&) = delete;

  /// "READY=1", "STOPPING=1", "WATCHDOG=1". What cannot be sent is lost.
  void say(std::string_view state) const noexcept;

 private:
  int socket_ = -1;
};

}  // namespace thc::ps
