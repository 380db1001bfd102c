// What a line of the log looks like.
#pragma once

#include <string>

namespace thc::ps {

/// Logs to standard error from here on. format: "text", or "json", an object in a line: time (ISO 8601), level,
/// message. level: of spdlog.
void open_log(const std::string& format, const std::string& level);

}  // namespace thc::ps
