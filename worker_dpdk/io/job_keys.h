#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace thc::io {

inline constexpr std::size_t kJobKeyBytes = 32;
using JobKey = std::array<std::uint8_t, kJobKeyBytes>;

enum class Direction : std::uint8_t {
  kUp,    ///< from workers
  kDown,  ///< from servers
};

struct MessageKeys {
  std::array<std::uint8_t, 16> header;   ///< for the tag
  std::array<std::uint8_t, 32> payload;  ///< for the payload's digest
};

class JobKeys {
 public:
  /// The file has one line of 64 hexadecimal digits, the key of all jobs, or lines "JOB 64-DIGITS", and # comments. A
  /// relative `name` is looked up in $CREDENTIALS_DIRECTORY first. Throws ConfigurationError: unreadable, open to other
  /// users (docs/contributors/security.md), malformed, or `name` is itself a key, which is not repeated.
  static JobKeys read(const std::string& name);
  /// Messages contain `name` and no keys.
  static JobKeys parse(std::string_view text, const std::string& name);
  explicit JobKeys(const JobKey& for_all) : for_all_(for_all) {}

  JobKeys(const JobKeys&) = default;
  JobKeys& operator=(const JobKeys&) = default;
  /// Wipes the keys.
  ~JobKeys();

  std::optional<MessageKeys> derive(std::uint16_t job, Direction direction) const noexcept;

 private:
  JobKeys() = default;

  std::optional<JobKey> for_all_;
  std::map<std::uint16_t, JobKey> by_job_;
};

}  // namespace thc::io
