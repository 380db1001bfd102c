#include "log_format.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <ctime>
#include <memory>
#include <utility>

namespace thc::ps {

namespace {

constexpr char kJson[] = R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","program":"%n","message":"%J"})";

/// %J: the message, as it stands between quotes.
class JsonText : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm& /*time*/, spdlog::memory_buf_t& line) override {
    for (const char letter : message.payload) {
      const auto code = static_cast<unsigned char>(letter);
      if (letter == '"' || letter == '\\') {
        line.push_back('\\');
        line.push_back(letter);
      } else if (code < 0x20) {
        fmt::format_to(std::back_inserter(line), "\\u{:04x}", code);
      } else {
        line.push_back(letter);
      }
    }
  }

  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<JsonText>(); }
};

}  // namespace

void open_log(const std::string& format, const std::string& level) {
  const bool json = format == "json";
  spdlog::set_default_logger(json ? spdlog::stderr_logger_mt("thc-ps") : spdlog::stderr_color_mt("thc-ps"));
  if (json) {
    auto formatter = std::make_unique<spdlog::pattern_formatter>();
    formatter->add_flag<JsonText>('J').set_pattern(kJson);
    spdlog::set_formatter(std::move(formatter));
  }
  spdlog::set_level(spdlog::level::from_str(level));
}

}  // namespace thc::ps
