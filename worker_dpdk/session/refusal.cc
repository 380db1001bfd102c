#include "session/refusal.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "io/address.h"

namespace thc {
namespace {

// Ethernet's 1500 bytes minus the headers of IP and UDP, and the tag of a job with a key.
constexpr std::size_t kEthernetDatagramBytes = 1500 - 28 - 8;

std::string name_of(wire::ConfigField field) {
  const auto value = static_cast<std::size_t>(field);
  if (field == wire::ConfigField::kNone || value >= wire::kConfigFieldNames.size()) {
    return "configuration";
  }
  switch (field) {
    case wire::ConfigField::kSettings:
      return "seed, p, rotation_block, partition_bytes, rounding or error_feedback";
    case wire::ConfigField::kArithmetic:
      return "the version of byteps_thc's arithmetic";
    case wire::ConfigField::kTable:
      return "the lookup table (by p or granularity)";
    default:
      return wire::kConfigFieldNames[value];
  }
}

/// Returns nullopt for fields without a number.
std::optional<std::uint32_t> own_value(wire::ConfigField field, const SessionConfig& config) {
  return field == wire::ConfigField::kWorkerId ? config.worker_id : value_of(field, job_config(config));
}

std::string list_of(std::uint64_t workers) {
  std::vector<unsigned> list;
  for (unsigned worker = 0; worker < wire::kMaxWorkers; ++worker) {
    if (((workers >> worker) & 1U) != 0) list.push_back(worker);
  }
  return fmt::format("{}", fmt::join(list, ", "));
}

/// "10.0 s"
std::string seconds(Duration duration) {
  std::string text = fmt::format("{:f}", static_cast<double>(duration.count()) / 1e6);
  text.erase(text.find_last_not_of('0') + 1);
  return text + (text.back() == '.' ? "0 s" : " s");
}

std::string place_of(io::Endpoint server, const SessionConfig& config) {
  return fmt::format("server {}, job {}: ", io::to_string(server), config.job_id);
}

std::uint64_t all_workers(const SessionConfig& config) {
  return config.num_workers == wire::kMaxWorkers ? ~std::uint64_t{0} : (std::uint64_t{1} << config.num_workers) - 1;
}

/// "4"; for an arithmetic, its number and the digest of its bits: "1 (digest 0xa3f2)"
std::string value_text(wire::ConfigField field, std::uint32_t value) {
  return field == wire::ConfigField::kArithmetic ? fmt::format("{} (digest 0x{:04x})", value >> 16, value & 0xffff)
                                                 : fmt::format("{}", value);
}

std::string same_field_hint(wire::ConfigField field) {
  return field == wire::ConfigField::kArithmetic
             ? "; install the same version of byteps_thc on the hosts of all workers"
             : "; give all workers the same ServerCodes, or THC_CONFIG, the job description of a switch the same "
               "[jobs.thc], and the servers of racks, if there are any, the same --racks";
}

/// " (this worker: 2, job: 4)"
std::string both_values(wire::ConfigField field, std::uint32_t job_value, const SessionConfig& config) {
  const auto own = own_value(field, config);
  return own ? fmt::format(" (this worker: {}, job: {})", value_text(field, *own), value_text(field, job_value)) : "";
}

/// For a retry: the job's or a switch's size, or one for any Ethernet path, as this path may lose larger packets.
std::uint32_t smaller_packets(const wire::ErrorPayload& error, const SessionConfig& config) {
  if (static_cast<wire::ConfigField>(std::uint16_t{error.field}) != wire::ConfigField::kCodesPerPacket) {
    return 0;
  }
  const bool differs =
      static_cast<wire::ErrorReason>(std::uint16_t{error.reason}) == wire::ErrorReason::kConfigMismatch;
  const std::uint32_t wanted =
      differs ? std::uint32_t{error.job_value}
              : auto_codes_per_packet(kEthernetDatagramBytes, config.table.bits(), config.value_bits);
  const bool possible = wanted >= wire::kMinCodesPerPacket && wanted % wire::kMinCodesPerPacket == 0;
  return possible && wanted < config.codes_per_packet ? wanted : 0;
}

/// "auto" is each worker's own choice, so its size may differ on another path.
std::string packet_hint(wire::ConfigField field, std::uint32_t job_value, const SessionConfig& config) {
  if (field != wire::ConfigField::kCodesPerPacket) {
    return "";
  }
  return fmt::format(
      ". \"auto\" is what the path of a worker takes: where they have several MTUs, "
      "ServerCodes(codes_per_packet={}) on all of them",
      std::min(config.codes_per_packet, job_value));
}

std::string outsider_hint(const Outsider& outsider, const SessionConfig& config) {
  if (outsider.field == wire::ConfigField::kNone) {
    return "";
  }
  const auto own = own_value(outsider.field, config);
  const std::string values =
      own ? fmt::format(" ({}, here {})", value_text(outsider.field, outsider.value), value_text(outsider.field, *own))
          : "";
  return fmt::format("; the server has refused one that differs in {}{}{}", name_of(outsider.field), values,
                     packet_hint(outsider.field, outsider.value, config));
}

/// A rack's server knows its workers in advance.
std::string own_workers_hint(wire::ConfigField field) {
  switch (field) {
    case wire::ConfigField::kNumWorkers:
    case wire::ConfigField::kWorkerId:
    case wire::ConfigField::kQuorum:
      return "; a switch has the workers of its job description, and the server of a rack (thc-ps --racks) those of "
             "its rack, and no quorum but all";
    default:
      return "";
  }
}

std::string rack_overflow(std::uint32_t largest, const SessionConfig& config) {
  return fmt::format(
      "granularity {} overflows the 8 bits of a rack's sum, or with value_bits {} the sum of all racks: it can be "
      "{} at most here. Give all workers a smaller ServerCodes(granularity=...), or make racks smaller",
      config.table.granularity(), config.value_bits, largest);
}

std::string missing_racks(const InFlight& packet) {
  if (packet.seen_racks == 0) {
    return ": this worker's rack is complete, but the root, the server above its server, does not answer: is thc-ps "
           "running there? (thc-ps --upstream of the rack's server says where)";
  }
  const std::uint64_t all = packet.racks >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << packet.racks) - 1;
  return fmt::format(": rack {} of {} (from 0) has not sent its part: look at its server and at what its server says",
                     list_of(all & ~packet.seen_racks), packet.racks);
}

/// "; ..." for a silent switch: without timers it cannot report that it waits for a root.
std::string silent_root_hint(const NoResult& known) {
  const bool silent =
      known.silent_for > Duration::zero() || known.undelivered_for > Duration::zero() || !known.server_answered;
  if (!known.of_switch || !silent) {
    return "";
  }
  return "; or it is the switch of a rack, and the root, the server above it, is silent: is thc-ps running where "
         "`upstream` of the switch's description says?";
}

/// For a live server whose results do not arrive, or that packets do not reach.
std::string undelivered(io::Endpoint server, const NoResult& known) {
  const auto [first, of_packet, last] = known.ports;
  return fmt::format(
      ": the server answers, but {} has delivered nothing for {}. Check that firewalls let UDP pass both ways on "
      "{}, and that the path has the MTU of both ends",
      io::to_string(io::Endpoint{server.ip, of_packet}), seconds(known.undelivered_for),
      first == last ? fmt::format("port {}", first) : fmt::format("ports {} to {}", first, last));
}

/// "; ..." if packets exceed an Ethernet path, which drops them silently.
std::string packet_size_hint(const SessionConfig& config, LargePackets large_packets) {
  const unsigned wider_bits = std::max(config.table.bits(), config.value_bits);
  const std::size_t datagram_bytes = sizeof(wire::Header) + std::size_t{config.codes_per_packet} * wider_bits / 8;
  if (large_packets == LargePackets::kFit || !is_larger_than_ethernet(datagram_bytes)) {
    return "";
  }
  const std::uint32_t fitting = auto_codes_per_packet(kEthernetDatagramBytes, config.table.bits(), config.value_bits);
  const char* why = large_packets == LargePackets::kNeverFit
                        ? "; small messages were answered, and large ones never: packets have up to "
                        : "; or only small packets get through since then: these have up to ";
  return fmt::format(
      "{}{} bytes, and where a part of the path has a smaller MTU than its ends, large ones are dropped silently. "
      "ServerCodes(codes_per_packet={}) on all workers fits 1500 bytes",
      why, datagram_bytes, fitting);
}

}  // namespace

bool is_larger_than_ethernet(std::size_t datagram_bytes) noexcept { return datagram_bytes > kEthernetDatagramBytes; }

Failure order_mismatch(const wire::Header& about, io::Endpoint server, const SessionConfig& config) {
  return {
      Failure::Kind::kTransport,
      fmt::format("{}worker {} pushed another partition than the other workers at slot {} round {}; all workers must "
                  "push the same partitions in the same order",
                  place_of(server, config), config.worker_id, std::uint32_t{about.slot}, std::uint32_t{about.round})};
}

Failure refusal(const ServerMessage& message, io::Endpoint server, const SessionConfig& config) {
  const auto error = payload_of<wire::ErrorPayload>(message);
  const auto field = static_cast<wire::ConfigField>(std::uint16_t{error.field});
  const auto own = own_value(field, config);
  const std::string who = place_of(server, config);
  const std::string worker = fmt::format("worker {}", config.worker_id);
  switch (static_cast<wire::ErrorReason>(std::uint16_t{error.reason})) {
    case wire::ErrorReason::kUnknownJob:
      return {
          Failure::Kind::kRefused,
          who +
              "there is no such job; a switch sums for the jobs of its description only (a BytePS training has one for "
              "each lane of each of its optimizers: lanes=1 in THC_SERVERS, or `lanes` in the description)"};
    case wire::ErrorReason::kStaleEpoch:
      return {Failure::Kind::kRestart, who + "the job was started anew by another worker; restart this one as well"};
    case wire::ErrorReason::kDuplicateWorker:
      return {Failure::Kind::kRefused,
              who + worker +
                  " is already there, in another live process: give another training another job number "
                  "(NetworkConfig(job=...), Session(job=...), THC_JOB), and every process of this one its own worker "
                  "number"};
    case wire::ErrorReason::kConfigMismatch:
      return {.kind = Failure::Kind::kRefused,
              .message = fmt::format("{}{} of {} differs from the job's{}{}{}", who, name_of(field), worker,
                                     both_values(field, error.job_value, config), same_field_hint(field),
                                     packet_hint(field, error.job_value, config)),
              .codes_per_packet = smaller_packets(error, config)};
    case wire::ErrorReason::kOtherTraining:
      return {
          Failure::Kind::kRefused,
          who + "another training uses this job number here" +
              (config.run == 0 ? ", and this one does not say which one it is (run=..., THC_RUN, the same on all "
                                 "its workers)"
                               : "") +
              ": use another job number (NetworkConfig(job=...), Session(job=...), THC_JOB), or wait until it ends" +
              (config.run == 0 ? ""
                               : "; if these are workers of one training, they say different runs: with BytePS, the "
                                 "scheduler's address and port (DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT) must be the same "
                                 "text on all of them")};
    case wire::ErrorReason::kOverflow:
      return {Failure::Kind::kRefused, who + (error.job_value == 0 ? "granularity times workers overflows value_bits"
                                                                   : rack_overflow(error.job_value, config))};
    case wire::ErrorReason::kTooManyJobs:
      return {Failure::Kind::kRefused,
              who +
                  "the server takes no more jobs, or no more from this address: raise thc-ps --max-jobs, "
                  "--max-jobs-per-address or --max-memory; its log says which"};
    case wire::ErrorReason::kOrderMismatch:
      return order_mismatch(message.header, server, config);
    case wire::ErrorReason::kDraining:
      return {Failure::Kind::kTransport, who + "the server is shutting down"};
    case wire::ErrorReason::kBadConfig:
      if (field == wire::ConfigField::kNone) {
        return {Failure::Kind::kRefused,
                who + "the server cannot serve this job: read its log, and change its options"};
      }
      return {.kind = Failure::Kind::kRefused,
              .message = fmt::format("{}the server does not take {}{}{}", who, name_of(field),
                                     own ? fmt::format(" {}", *own) : "", own_workers_hint(field)),
              .codes_per_packet = smaller_packets(error, config)};
    default:
      return {Failure::Kind::kTransport, fmt::format("{}unknown error reason {}", who, std::uint16_t{error.reason})};
  }
}

bool says_larger_packets(const ServerMessage& message, const SessionConfig& config) noexcept {
  const auto error = payload_of<wire::ErrorPayload>(message);
  return static_cast<wire::ErrorReason>(std::uint16_t{error.reason}) == wire::ErrorReason::kConfigMismatch &&
         static_cast<wire::ConfigField>(std::uint16_t{error.field}) == wire::ConfigField::kCodesPerPacket &&
         error.job_value > config.codes_per_packet;
}

Failure no_welcome(io::Endpoint server, const SessionConfig& config) {
  return {Failure::Kind::kDeadline,
          fmt::format("server {} did not answer HELLO within {}; is thc-ps, or a switch with its agent, running there, "
                      "does UDP reach it, and has it the same key for this job (or none, as a switch)?",
                      io::to_string(server), seconds(config.connect_timeout))};
}

Failure no_root(io::Endpoint server, const SessionConfig& config) {
  return {Failure::Kind::kDeadline,
          fmt::format("server {} is that of a rack and answers, but has had no answer from the root, the server above "
                      "it, within {}: is thc-ps running where its --upstream says, with the same --threads, and with "
                      "the same key for this job (or none)?",
                      io::to_string(server), seconds(config.connect_timeout))};
}

Failure no_welcome_of_shard(io::Endpoint shard, io::Endpoint server, std::uint32_t shards,
                            const SessionConfig& config) {
  return {Failure::Kind::kDeadline,
          fmt::format("server {} did not answer HELLO within {}, but {} did: it has {} threads, each with a port; is "
                      "UDP open both ways on ports {} to {}?",
                      io::to_string(shard), seconds(config.connect_timeout), io::to_string(server), shards, server.port,
                      server.port + shards - 1)};
}

Failure no_result(const Operation& operation, io::Endpoint server, const SessionConfig& config, const NoResult& known) {
  Failure failure{Failure::Kind::kDeadline,
                  fmt::format("partition {} has no {} from server {} within {}", operation.partition(),
                              operation.stage() == Stage::kNorm ? "maximum norms" : "aggregate", io::to_string(server),
                              seconds(config.operation_timeout))};
  const InFlight* packet = known.packet;
  if (packet != nullptr) {
    failure.slot = packet->slot;
    failure.round = packet->round;
    failure.message += fmt::format(" (slot {} round {})", packet->slot, packet->round);
  }
  const std::uint64_t missing =
      packet != nullptr && packet->seen_workers != 0 ? all_workers(config) & ~packet->seen_workers : 0;
  if (known.silent_for > Duration::zero()) {
    failure.message += fmt::format(": the server has not answered for {}, so the server or the path to it is down{}",
                                   seconds(known.silent_for),
                                   missing != 0 ? "; before that it waited for worker " + list_of(missing) : "");
  } else if (known.undelivered_for > Duration::zero()) {
    failure.message += undelivered(server, known);
  } else if (packet != nullptr && packet->racks != 0) {
    failure.message += missing_racks(*packet);
  } else if (missing != 0) {
    failure.missing_workers = missing;
    failure.message += ": missing worker " + list_of(missing) + outsider_hint(known.outsider, config);
  } else {
    failure.message +=
        known.server_answered ? ": the server answers, but did not say who is missing" : ": the server does not answer";
  }
  failure.message += silent_root_hint(known);
  failure.message += packet_size_hint(config, known.large_packets);
  if (known.rejoined) {
    failure.kind = Failure::Kind::kRestart;
    failure.message +=
        "; meanwhile the server knew the job no longer (it was restarted, or dropped the job after --idle-timeout), so "
        "some workers may have had the result before";
  }
  return failure;
}

Failure lost_round(io::Endpoint server, const std::string& what) {
  return {Failure::Kind::kRestart, "server " + io::to_string(server) + " " + what};
}

}  // namespace thc
