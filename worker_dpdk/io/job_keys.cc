#include "io/job_keys.h"

#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "io/udp_socket.h"
#include "thc/errors.h"

namespace thc::io {
namespace {

constexpr std::size_t kMostFileBytes = std::size_t{8} << 20;  // a line per job
constexpr const char* kHowToMake = "; make one with: (umask 077; thc key > FILE)";

constexpr std::string_view kHexDigits = "0123456789abcdefABCDEF";
/// A name of this many hex digits alone may be part of a key.
constexpr std::size_t kLeastKeyDigits = 32;

[[noreturn]] void refuse(const std::string& name, const std::string& why) {
  throw ConfigurationError("key file " + name + ": " + why);
}

/// A user may have passed the key itself, which messages must not repeat.
bool contains_key(std::string_view path) {
  if (path.size() >= kLeastKeyDigits && path.find_first_not_of(kHexDigits) == std::string_view::npos) return true;
  std::size_t digits = 0;
  for (const char c : path) {
    digits = kHexDigits.find(c) != std::string_view::npos ? digits + 1 : 0;
    if (digits >= 2 * kJobKeyBytes) return true;
  }
  return false;
}

/// A relative name may be a credential, which systemd passes in a folder (LoadCredential=).
std::string locate(const std::string& name) {
  const char* credentials = std::getenv("CREDENTIALS_DIRECTORY");  // NOLINT(concurrency-mt-unsafe)
  if (credentials == nullptr || name.empty() || name.front() == '/') return name;
  std::string path = std::string(credentials) + "/" + name;
  return access(path.c_str(), F_OK) == 0 ? path : name;
}

/// Whether others than owner and group may replace files in the file's folder, after resolving links.
bool folder_is_open(const std::string& path) {
  std::error_code error;
  const std::filesystem::path file = std::filesystem::canonical(path, error);
  struct stat status{};
  return error || stat(file.parent_path().c_str(), &status) != 0 || (status.st_mode & S_IWOTH) != 0;
}

void check_mode(const std::string& path, const struct stat& status) {
  // The owner knows the keys and may change them at any time.
  if (status.st_uid != geteuid() && status.st_uid != 0) {
    refuse(path, "it belongs to user " + std::to_string(status.st_uid) +
                     ", who may know its keys: make new ones in a file of this process's user, or of root");
  }
  if ((status.st_mode & S_IRWXO) != 0) {
    refuse(path, "everybody may use it, so its keys may be known: chmod 600, and make new ones");
  }
  if ((status.st_mode & S_IRWXG) == 0) return;
  // root owns the files of systemd's credentials and Kubernetes' secrets; the group of the reader may read them.
  if (status.st_uid != 0 || (status.st_mode & (S_IWGRP | S_IXGRP)) != 0 || folder_is_open(path)) {
    refuse(path,
           "its group may use it. That is allowed to read root's file (0440) in a folder that others cannot write: "
           "chmod 600, and make new keys");
  }
}

std::string read_private_file(const std::string& path) {
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (file.get() < 0) refuse(path, std::string(std::strerror(errno)) + (errno == ENOENT ? kHowToMake : ""));
  struct stat status{};
  if (fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    refuse(path, "not a regular file: pass the path of a file with keys, not of a folder or device");
  }
  check_mode(path, status);
  if (static_cast<std::size_t>(status.st_size) > kMostFileBytes) refuse(path, "too long for a key file");
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  std::size_t length = 0;
  while (length < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + length, text.size() - length);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    length += static_cast<std::size_t>(got);
  }
  text.resize(length);
  return text;
}

std::optional<JobKey> parse_key(std::string_view digits) {
  JobKey key;
  std::size_t length = 0;
  const char* end = nullptr;
  if (digits.size() != 2 * kJobKeyBytes ||
      sodium_hex2bin(key.data(), key.size(), digits.data(), digits.size(), nullptr, &length, &end) != 0 ||
      length != key.size() || end != digits.data() + digits.size()) {
    return std::nullopt;
  }
  return key;
}

std::string_view take_word(std::string_view& line) {
  constexpr std::string_view kBlanks = " \t\r";
  line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
  const std::string_view word = line.substr(0, line.find_first_of(kBlanks));
  line.remove_prefix(word.size());
  return word;
}

}  // namespace

JobKeys JobKeys::read(const std::string& name) {
  if (contains_key(name)) {
    throw ConfigurationError(
        "a key was given where the name of its file is expected: write a new key to a file, (umask 077; thc key > "
        "FILE), and give FILE. The key that was given may be in the list of processes or a shell's history");
  }
  const std::string path = locate(name);
  std::string text = read_private_file(path);
  const struct Wipe {
    std::string& text;
    ~Wipe() { sodium_memzero(text.data(), text.size()); }
  } wipe{text};
  return parse(text, path);
}

JobKeys JobKeys::parse(std::string_view text, const std::string& name) {
  JobKeys keys;
  for (std::size_t number = 1; !text.empty(); ++number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    line = line.substr(0, line.find('#'));  // a comment; keys never contain '#'
    const std::string where = "line " + std::to_string(number) + ": ";
    const std::string_view first = take_word(line);
    if (first.empty()) continue;
    const std::string_view second = take_word(line);
    const auto key = parse_key(second.empty() ? first : second);
    if (!key || !take_word(line).empty()) {
      refuse(name, where + "expected 64 hexadecimal digits, the key of all jobs, or JOB and 64 digits" + kHowToMake);
    }
    if (second.empty()) {
      if (keys.for_all_) refuse(name, where + "a second key for all jobs: keep one");
      keys.for_all_ = key;
      continue;
    }
    std::uint16_t job = 0;
    const auto [end, error] = std::from_chars(first.data(), first.data() + first.size(), job);
    if (error != std::errc() || end != first.data() + first.size()) {
      refuse(name, where + "a job is a number of 0 to 65535");
    }
    if (!keys.by_job_.emplace(job, *key).second) {
      refuse(name, where + "a second key for job " + std::to_string(job) + ": keep one");
    }
  }
  if (keys.for_all_ && !keys.by_job_.empty()) {
    refuse(name, "it has a key for all jobs and keys for single jobs; it can have one or the other");
  }
  if (!keys.for_all_ && keys.by_job_.empty()) refuse(name, std::string("there is no key in it") + kHowToMake);
  return keys;
}

JobKeys::~JobKeys() {
  if (for_all_) sodium_memzero(for_all_->data(), for_all_->size());
  for (auto& [job, key] : by_job_) sodium_memzero(key.data(), key.size());
}

std::optional<MessageKeys> JobKeys::derive(std::uint16_t job, Direction direction) const noexcept {
  const auto found = by_job_.find(job);
  const JobKey* key = for_all_ ? &*for_all_ : found != by_job_.end() ? &found->second : nullptr;
  if (key == nullptr) return std::nullopt;
  // Keyed BLAKE2b over the purpose: "thc up" or "thc dn" and the job, big-endian.
  std::array<std::uint8_t, 8> purpose{'t', 'h', 'c', ' '};
  purpose[4] = direction == Direction::kUp ? 'u' : 'd';
  purpose[5] = direction == Direction::kUp ? 'p' : 'n';
  purpose[6] = static_cast<std::uint8_t>(job >> 8);
  purpose[7] = static_cast<std::uint8_t>(job);
  MessageKeys keys;
  std::array<std::uint8_t, sizeof keys> derived;
  crypto_generichash(derived.data(), derived.size(), purpose.data(), purpose.size(), key->data(), key->size());
  std::memcpy(keys.header.data(), derived.data(), keys.header.size());
  std::memcpy(keys.payload.data(), derived.data() + keys.header.size(), keys.payload.size());
  sodium_memzero(derived.data(), derived.size());
  return keys;
}

}  // namespace thc::io
