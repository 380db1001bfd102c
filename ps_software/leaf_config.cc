#include "leaf_config.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "thc/errors.h"

namespace thc::ps {
namespace {

using wire::ConfigField;
using wire::ErrorReason;

struct Workers {
  unsigned first, last;
};

std::optional<unsigned> to_number(std::string_view text) noexcept {
  unsigned number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return number;
}

Workers parse_workers(const std::string& text) {
  const std::string_view view = text;
  const auto dash = view.find('-');
  const auto first = to_number(view.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : to_number(view.substr(dash + 1));
  if (!first || !last || *last < *first || *last >= wire::kMaxWorkers) {
    throw ConfigurationError("'" + text + "' is not a rack: write its first and last worker, such as 0-3, below " +
                             std::to_string(wire::kMaxWorkers));
  }
  return {*first, *last};
}

std::uint64_t mask_of(unsigned first, unsigned count) noexcept {
  return (count == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1) << first;
}

/// Low half of FNV-1a 64 over settings_hash u32 be, table_hash u64 be, num_workers u8, first workers of racks u64 be.
std::uint32_t settings_of_rack(const JobConfig& config, std::uint64_t first_workers) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325U;
  const auto add = [&hash](std::uint64_t value, unsigned bits) {
    while (bits != 0) {
      bits -= 8;
      hash = (hash ^ (value >> bits & 0xff)) * 0x100000001b3U;
    }
  };
  add(config.settings_hash, 32);
  add(config.table.hash(), 64);
  add(config.num_workers, 8);
  add(first_workers, 64);
  return static_cast<std::uint32_t>(hash);
}

/// T[z] = min(z, granularity): the root adds sums.
LookupTable identity(unsigned granularity) {
  std::vector<std::uint16_t> values(std::size_t{1} << LeafConfig::kSumBits);
  for (std::size_t z = 0; z < values.size(); ++z) {
    values[z] = static_cast<std::uint16_t>(std::min<std::size_t>(z, granularity));
  }
  return LookupTable(LeafConfig::kSumBits, values);
}

}  // namespace

std::optional<Refusal> LeafConfig::refuse(const Hello& hello) const noexcept {
  const JobConfig& config = hello.config;
  const auto bad = [](ConfigField field) { return Refusal{.reason = ErrorReason::kBadConfig, .field = field}; };
  if (config.num_workers != num_workers) return bad(ConfigField::kNumWorkers);
  if (hello.worker_id < first_worker || hello.worker_id >= first_worker + rack_workers) {
    return bad(ConfigField::kWorkerId);
  }
  if (config.quorum != num_workers) return bad(ConfigField::kQuorum);
  // Bounds a rack's sum, and the largest total from the root's view.
  const unsigned largest_total = (1U << config.value_bits) - 1;
  const unsigned granularity = std::min(kLargestSum / largest_rack, largest_total / (largest_rack * racks));
  if (config.table.granularity() > granularity) {
    return Refusal{.reason = ErrorReason::kOverflow, .field = ConfigField::kGranularity, .job_value = granularity};
  }
  return std::nullopt;
}

JobConfig LeafConfig::towards_root(const JobConfig& config) const {
  return {.num_workers = racks,
          .value_bits = config.value_bits,
          .quorum = racks,
          .settings_hash = settings_of_rack(config, first_workers),
          .arithmetic = config.arithmetic,
          .codes_per_packet = config.codes_per_packet,
          .slots_asked = config.slots_asked,
          .table = identity(unsigned{config.table.granularity()} * largest_rack)};
}

Refusal LeafConfig::towards_workers(const Refusal& refusal) const noexcept {
  Refusal translated = refusal;
  switch (refusal.field) {
    case ConfigField::kGranularity:
      translated.job_value = refusal.job_value / largest_rack;
      break;
    case ConfigField::kNumWorkers:  // the root's view: racks, which workers do not know
    case ConfigField::kQuorum:
    case ConfigField::kWorkerId:
    case ConfigField::kCodeBits:
      translated.field = ConfigField::kNone;
      translated.job_value = 0;
      break;
    default:
      break;
  }
  return translated;
}

std::uint64_t LeafConfig::workers_elsewhere() const noexcept {
  return mask_of(0, num_workers) & ~mask_of(first_worker, rack_workers);
}

LeafConfig make_leaf(io::Endpoint root, std::uint32_t rack, const std::vector<std::string>& racks) {
  LeafConfig leaf{.root = root};
  if (racks.size() < 2 || rack >= racks.size()) {
    throw ConfigurationError(
        "--rack is the number of this server's rack among those of --racks, which are two at least: " +
        std::string("--racks 0-3,4-7 has rack 0 and rack 1"));
  }
  unsigned next = 0;
  for (std::size_t i = 0; i < racks.size(); ++i) {
    const Workers workers = parse_workers(racks[i]);
    if (workers.first != next) {
      throw ConfigurationError("--racks names all workers in ascending order: rack " + std::to_string(i) +
                               " must begin with worker " + std::to_string(next) + ", not " +
                               std::to_string(workers.first));
    }
    const unsigned count = workers.last - workers.first + 1;
    leaf.first_workers |= std::uint64_t{1} << workers.first;
    leaf.largest_rack = std::max(leaf.largest_rack, static_cast<std::uint8_t>(count));
    if (i == rack) {
      leaf.first_worker = static_cast<std::uint8_t>(workers.first);
      leaf.rack_workers = static_cast<std::uint8_t>(count);
    }
    next = workers.last + 1;
  }
  leaf.rack = static_cast<std::uint8_t>(rack);
  leaf.racks = static_cast<std::uint8_t>(racks.size());
  leaf.num_workers = static_cast<std::uint8_t>(next);
  return leaf;
}

io::Endpoint shard_endpoint(io::Endpoint server, std::uint16_t shard) noexcept {
  return {server.ip, static_cast<std::uint16_t>(server.port + shard)};
}

}  // namespace thc::ps
