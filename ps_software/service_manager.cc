#include "service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace thc::ps {

ServiceManager::ServiceManager() {
  const char* path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr) return;
  sockaddr_un address{};
  const std::size_t length = std::strlen(path);
  if (length < 2 || length >= sizeof(address.sun_path) || (path[0] != '/' && path[0] != '@')) return;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path, length);
  if (path[0] == '@') address.sun_path[0] = '\0';  // a name that is in no file system
  socket_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length);
  if (socket_ >= 0 && connect(socket_, reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    close(socket_);
    socket_ = -1;
  }
}

ServiceManager::~ServiceManager() {
  if (socket_ >= 0) close(socket_);
}

void ServiceManager::say(std::string_view state) const noexcept {
  if (socket_ >= 0) static_cast<void>(send(socket_, state.data(), state.size(), MSG_DONTWAIT | MSG_NOSIGNAL));
}

}  // namespace thc::ps
