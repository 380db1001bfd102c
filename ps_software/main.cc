// thc-ps, the software parameter server.
#include <fmt/core.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>

#include "io/address.h"
#include "options.h"
#include "server.h"
#include "service_manager.h"
#include "thc/errors.h"

namespace {

/// SIGTERM and SIGINT are waited for below; blocked before any thread starts, so that none is interrupted.
sigset_t block_stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

/// A log whose reader is gone, or that may not grow, ends no training: the line is lost.
void outlive_the_log() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

void announce(const std::string& address, const std::string& ready_file) {
  fmt::print("thc-ps ready on {}\n", address);
  std::fflush(stdout);
  if (ready_file.empty()) return;
  std::ofstream file(ready_file);
  file << address << '\n';
  file.close();
  if (!file) throw thc::ConfigurationError("cannot write --ready-file " + ready_file);
}

void serve(const thc::ps::Options& options) {
  const sigset_t signals = block_stop_signals();
  outlive_the_log();
  const thc::ps::ServiceManager manager;
  thc::ps::Server server(options);
  announce(thc::io::to_string(server.local()), options.ready_file);
  manager.say("READY=1");
  constexpr timespec kLogInterval{.tv_sec = 1, .tv_nsec = 0};
  while (sigtimedwait(&signals, nullptr, &kLogInterval) < 0) {
    server.log_jobs();
    if (server.all_threads_ran()) manager.say("WATCHDOG=1");
  }
  manager.say("STOPPING=1");
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
