#include <fmt/core.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>

#include "io/address.h"
#include "io/udp_socket.h"
#include "options.h"
#include "server.h"

namespace {

/// Blocks them before threads start, so that main() alone waits for them.
sigset_t block_stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

/// A broken or full log must not end training: the line is lost.
void outlive_the_log() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

/// sd_notify(3) for Type=notify: "READY=1", "STOPPING=1", "WATCHDOG=1". Errors are ignored.
void notify(std::string_view state) {
  const char* path = std::getenv("NOTIFY_SOCKET");  // NOLINT(concurrency-mt-unsafe)
  const std::string_view name = path == nullptr ? "" : path;
  sockaddr_un address{};
  if (name.size() < 2 || name.size() >= sizeof(address.sun_path) || (name[0] != '/' && name[0] != '@')) return;
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path, name.size());
  if (name[0] == '@') address.sun_path[0] = '\0';  // abstract socket names begin with 0
  const thc::io::FileDescriptor fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  static_cast<void>(sendto(fd.get(), state.data(), state.size(), MSG_DONTWAIT | MSG_NOSIGNAL,
                           reinterpret_cast<const sockaddr*>(&address), size));
}

void serve(const thc::ps::Options& options) {
  const sigset_t signals = block_stop_signals();
  outlive_the_log();
  thc::ps::Server server(options);
  fmt::print("thc-ps ready on {}\n", thc::io::to_string(server.local()));
  std::fflush(stdout);
  notify("READY=1");
  constexpr timespec kLogInterval{.tv_sec = 1, .tv_nsec = 0};
  while (sigtimedwait(&signals, nullptr, &kLogInterval) < 0) {
    server.log_jobs();
    if (server.all_threads_ran()) notify("WATCHDOG=1");
  }
  notify("STOPPING=1");
  spdlog::info("draining");
  server.drain();
}

}  // namespace

int main(int argc, char** argv) {
  thc::ps::Options options;
  if (const auto exit_code = thc::ps::parse_options(argc, argv, options)) return *exit_code;
  spdlog::set_default_logger(spdlog::stderr_color_mt("thc-ps"));
  spdlog::set_level(spdlog::level::from_str(options.log_level));
  try {
    serve(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "thc-ps: {}\n", error.what());
    return 1;
  }
  return 0;
}
