// Keys of authenticated jobs, and what is derived from them.
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

/// Of one job and direction.
struct MessageKeys {
  std::array<std::uint8_t, 16> header;   ///< of the tag
  std::array<std::uint8_t, 32> payload;  ///< of the payload's digest
};

/// The key of every job that has one.
class JobKeys {
 public:
  /// A file of one line of 64 hexadecimal digits, the key of all jobs, or of lines "JOB 64-DIGITS"; empty lines and
  /// those that begin with # do not count. name: its path; a relative one is looked up in $CREDENTIALS_DIRECTORY first.
  /// Throws ConfigurationError: not readable, open to people who should not know its keys
  /// (docs/contributors/security.md), not of this form; or the name is a key itself, which is not repeated.
  static JobKeys read(const std::string& name);
  /// The same of its text; `name` is for messages. Keys are in none of them.
  static JobKeys parse(std::string_view text, const std::string& name);
  /// One key for all jobs.
  explicit JobKeys(const JobKey& for_all) : for_all_(for_all) {}

  JobKeys(const JobKeys&) = default;
  JobKeys& operator=(const JobKeys&) = default;
  /// Wipes the memory.
  ~JobKeys();

  /// Nothing for a job without a key.
  std::optional<MessageKeys> derive(std::uint16_t job, Direction direction) const noexcept;

 private:
  JobKeys() = default;

  std::optional<JobKey> for_all_;
  std::map<std::uint16_t, JobKey> by_job_;
};

}  // namespace thc::io
