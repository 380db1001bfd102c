#include "simulation/scenario.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <sstream>

#include "simulation/process.h"

namespace thc::simulation {
namespace {

constexpr std::uint16_t kServerPort = 48865;
constexpr std::uint16_t kWorkerPort = 50000;
constexpr std::uint16_t kTcpPort = 5001;

/// The package's default: 4 bits, granularity 30.
LookupTable table() {
  return {4, std::vector<std::uint16_t>{0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30}};
}

SessionConfig session_config(const Scenario& scenario, std::vector<io::Endpoint> servers) {
  SessionConfig config{.table = table()};
  config.servers = std::move(servers);
  config.job_id = 7;
  config.num_workers = static_cast<std::uint8_t>(scenario.workers);
  config.run = 1;
  return resolve(std::move(config), kMaxDatagramBytes);
}

std::size_t host_of_server(const Scenario& scenario, std::size_t server) {
  return scenario.colocated ? server : scenario.workers + server;
}

std::size_t partitions_of(const Scenario& scenario) {
  return scenario.partitions == 0 ? 2 * scenario.servers : scenario.partitions;
}

/// Codes of a partition.
std::size_t codes_of(const Scenario& scenario, std::size_t partition) {
  const std::size_t partitions = partitions_of(scenario);
  return scenario.parameters * (partition + 1) / partitions - scenario.parameters * partition / partitions;
}

class Training {
 public:
  explicit Training(const Scenario& scenario);
  Outcome run();

 private:
  struct Member {
    std::unique_ptr<Worker> worker;
    std::vector<std::shared_ptr<Operation>> operations;
    std::unique_ptr<Alarm> start;
    Picoseconds ended_at = kNever;
    std::vector<std::uint8_t> contributions;
  };
  void add_competitor();
  void changed(Member& member);
  void begin_step();
  void submit(Member& member);
  void end_step();
  void count(Outcome& outcome) const;

  const Scenario scenario_;
  EventQueue events_;
  Network network_;
  std::vector<io::Endpoint> addresses_;
  SessionConfig config_;
  std::vector<std::unique_ptr<Server>> servers_;
  std::vector<Member> members_;
  std::vector<std::uint8_t> codes_;
  std::vector<std::uint8_t> sums_;                     ///< all workers store the same here
  std::vector<std::unique_ptr<TcpFlow>> competitors_;  ///< the first shares the link of own_bits_
  std::uint64_t competitor_bytes_ = 0;                 ///< at the step's begin
  double own_bits_ = 0;                                ///< of a step on the link that the competitor uses
  double competitor_bits_ = 0;                         ///< while steps ran
  double running_s_ = 0;
  Alarm next_step_;
  bool connected_ = false;
  std::size_t ended_ = 0;  ///< workers that have ended the step
  Picoseconds began_at_ = 0;
  std::string problem_;
  Outcome outcome_;
};

double factor_of(const Scenario& scenario, std::size_t host) {
  const bool is_server = !scenario.colocated && host >= scenario.workers;
  return is_server ? scenario.server_factor : host == 0 ? scenario.slow_host_factor : 1;
}

LinkConfig link_config(const Scenario& scenario, double factor, bool up) {
  return {.rate_bps = scenario.rate_bps * factor,
          .queue_bytes = scenario.queue_bytes,
          .delay = picoseconds(scenario.one_way_delay_s / 2),
          .loss = up ? scenario.loss : 0,
          .mark_bytes = static_cast<std::size_t>(static_cast<double>(scenario.queue_bytes) * scenario.mark_fraction),
          .policer_bytes = scenario.policer_bytes};
}

Training::Training(const Scenario& scenario)
    : scenario_(scenario),
      network_(events_, scenario.seed),
      config_{.table = table()},
      next_step_(events_, [this] { begin_step(); }) {
  const std::size_t hosts = scenario.workers + (scenario.colocated ? 0 : scenario.servers);
  for (std::size_t host = 0; host < hosts; ++host) {
    const double factor = factor_of(scenario, host);
    network_.add_host(link_config(scenario, factor, true), link_config(scenario, factor, false),
                      scenario.back_pressure);
  }
  for (std::size_t server = 0; server < scenario.servers; ++server) {
    addresses_.push_back(Network::address(host_of_server(scenario, server), kServerPort));
  }
  config_ = session_config(scenario, addresses_);
  const ProcessCosts costs{.wake = picoseconds(scenario.wake_s), .packet = picoseconds(scenario.packet_s)};
  for (const io::Endpoint& address : addresses_) {
    servers_.push_back(std::make_unique<Server>(network_, address, scenario.receive_buffer_bytes, costs,
                                                ps::JobLimits{.share = {}, .slots = scenario.slots}));
  }
  members_.resize(scenario.workers);
  for (std::size_t number = 0; number < scenario.workers; ++number) {
    Member& member = members_[number];
    member.worker =
        std::make_unique<Worker>(network_, Network::address(number, kWorkerPort), scenario.receive_buffer_bytes, costs,
                                 config_, static_cast<std::uint8_t>(number), [this, &member] { changed(member); });
    member.start = std::make_unique<Alarm>(events_, [this, &member] { submit(member); });
    member.contributions.resize(scenario.parameters / config_.codes_per_packet + 2 * partitions_of(scenario));
  }
  add_competitor();
  codes_.assign(scenario.parameters / 2 + 1, 0x5a);
  sums_.resize(scenario.parameters * config_.value_bits / 8);
}

void Training::add_competitor() {
  if (scenario_.competitor == Competitor::kNone) return;
  const std::size_t host = host_of_server(scenario_, 0);
  const bool from_server = scenario_.competitor != Competitor::kToServer;
  const auto add = [&](std::size_t from, std::size_t to) {
    const auto port = static_cast<std::uint16_t>(kTcpPort + 2 * competitors_.size());
    competitors_.push_back(std::make_unique<TcpFlow>(network_, Network::address(from, port),
                                                     Network::address(to, port + 1), scenario_.growth));
  };
  if (scenario_.competitor == Competitor::kBothWays) {
    add(host, 0);
    for (std::size_t worker = 0; worker < scenario_.workers; ++worker) add(worker, host);
  } else {
    const std::size_t other =
        network_.add_host(link_config(scenario_, 1, true), link_config(scenario_, 1, false), scenario_.back_pressure);
    add(from_server ? host : other, from_server ? other : host);
  }
  const LinkBytes bytes = link_bytes(scenario_);
  own_bits_ = 8 * (from_server ? bytes.up : bytes.down)[host];
}

void Training::changed(Member& member) {
  if (const auto& failure = member.worker->engine().failure(); failure) {
    problem_ = "a worker failed: " + failure->message;
    return;
  }
  if (!connected_) {
    connected_ =
        std::ranges::all_of(members_, [](const Member& m) { return m.worker && m.worker->engine().connected(); });
    if (connected_) {
      for (const auto& competitor : competitors_) competitor->start();
      next_step_.set(events_.now() + picoseconds(scenario_.idle_s));
    }
    return;
  }
  const auto done = [](const auto& operation) { return operation->done(); };
  if (member.operations.empty() || !std::ranges::all_of(member.operations, done)) return;
  member.operations.clear();
  member.ended_at = events_.now();
  if (++ended_ == members_.size()) end_step();
}

void Training::begin_step() {
  ended_ = 0;
  std::ranges::fill(sums_, 0xee);
  competitor_bytes_ = competitors_.empty() ? 0 : competitors_.front()->delivered_bytes();
  began_at_ = events_.now();
  if (scenario_.later_one_way_delay_s != 0 && outcome_.step_s.size() == scenario_.route_change_step) {
    network_.set_delay(picoseconds(scenario_.later_one_way_delay_s / 2));
  }
  for (Member& member : members_) {
    const double late_s = &member == &members_.front() ? scenario_.straggler_s : 0;
    const Picoseconds start = events_.now() + picoseconds(late_s + scenario_.jitter_s * network_.random());
    began_at_ = std::max(began_at_, start);
    member.start->set(start);
  }
}

void Training::submit(Member& member) {
  std::size_t first = 0;
  std::size_t first_packet = 0;
  for (std::size_t partition = 0; partition < partitions_of(scenario_); ++partition) {
    const std::size_t count = codes_of(scenario_, partition);
    member.operations.push_back(Operation::codes(static_cast<std::uint16_t>(partition), codes_.data(), count,
                                                 sums_.data() + first * config_.value_bits / 8,
                                                 member.contributions.data() + first_packet, config_));
    first += count;
    first_packet += (count + config_.codes_per_packet - 1) / config_.codes_per_packet;
  }
  for (const auto& operation : member.operations) member.worker->submit(operation);
}

void Training::end_step() {
  Picoseconds first = kNever;
  for (const Member& member : members_) first = std::min(first, member.ended_at);
  const double took_s = seconds(events_.now() - began_at_);
  outcome_.step_s.push_back(took_s);
  if (!competitors_.empty()) {
    running_s_ += took_s + scenario_.straggler_s;
    competitor_bits_ += 8 * static_cast<double>(competitors_.front()->delivered_bytes() - competitor_bytes_);
  }
  outcome_.worst_spread = std::max(outcome_.worst_spread, seconds(events_.now() - first) / took_s);
  // Every worker has sent the codes 5 and 10 in turns.
  const std::size_t bytes = config_.value_bits / 8;
  for (std::size_t i = 0; i < scenario_.parameters; ++i) {
    std::uint64_t sum = 0;
    std::memcpy(&sum, sums_.data() + i * bytes, bytes);
    if (sum != 10 * members_.size() && sum != 20 * members_.size()) {
      problem_ = "sum " + std::to_string(i) + " is " + std::to_string(sum);
      return;
    }
  }
  if (outcome_.step_s.size() < scenario_.steps) next_step_.set(events_.now() + picoseconds(scenario_.idle_s));
}

Outcome Training::run() {
  const double ideal_s = ideal_of(scenario_).step_s() + scenario_.straggler_s + scenario_.idle_s;
  const double limit_s =
      scenario_.limit_s != 0 ? scenario_.limit_s : 100 * ideal_s * static_cast<double>(scenario_.steps) + 1;
  const Picoseconds limit = picoseconds(limit_s);
  while (problem_.empty() && outcome_.step_s.size() < scenario_.steps) {
    if (!events_.run_one(limit)) {
      problem_ = "not over after " + std::to_string(limit_s) + " s, " + std::to_string(outcome_.step_s.size()) +
                 " steps ended";
    }
  }
  count(outcome_);
  return outcome_;
}

void Training::count(Outcome& outcome) const {
  outcome.problem = problem_;
  for (const Member& member : members_) {
    const Counters& counters = member.worker->engine().counters();
    outcome.packets += counters[Count::kCodesSent] + counters[Count::kNormSent];
    outcome.repeats += counters[Count::kRetransmissions];
    outcome.rejoins += counters[Count::kRejoins];
    outcome.dropped_by_hosts += member.worker->socket().dropped();
    outcome.unanswered_ms = std::max(outcome.unanswered_ms, member.worker->unanswered_ms());
  }
  for (const auto& server : servers_) outcome.dropped_by_hosts += server->socket().dropped();
  for (std::size_t host = 0; host < network_.hosts(); ++host) {
    for (const Link* link : {&network_.up(host), &network_.down(host)}) {
      outcome.dropped += link->counters().dropped;
      outcome.lost += link->counters().lost;
      outcome.marked += link->counters().marked;
    }
  }
  double carried_bytes = 0;
  double needed_bytes = 0;
  const LinkBytes once = link_bytes(scenario_);
  for (std::size_t host = 0; host < once.up.size(); ++host) {
    carried_bytes += static_cast<double>(network_.up(host).counters().bytes);
    needed_bytes += once.up[host] * static_cast<double>(outcome.step_s.size());
  }
  outcome.excess = needed_bytes == 0 || !competitors_.empty() ? 0 : carried_bytes / needed_bytes - 1;
  if (running_s_ > 0) {
    const double rate_bps = scenario_.rate_bps * factor_of(scenario_, host_of_server(scenario_, 0));
    outcome.competitor_share = competitor_bits_ / running_s_ / rate_bps;
    outcome.own_share = own_bits_ * static_cast<double>(outcome.step_s.size()) / running_s_ / rate_bps;
  }
  outcome.simulated_s = seconds(events_.now());
  outcome.events = events_.events();
}

}  // namespace

namespace {

struct PacketBytes {
  std::size_t codes;
  std::size_t result;
};
PacketBytes packet_bytes(const SessionConfig& config) {
  const std::size_t per_packet = config.codes_per_packet;
  return {.codes = sizeof(wire::Header) + per_packet / 2 + kOverheadBytes,
          .result = sizeof(wire::Header) + per_packet * config.value_bits / 8 + kOverheadBytes};
}

}  // namespace

LinkBytes link_bytes(const Scenario& scenario) {
  const SessionConfig config = session_config(scenario, {Network::address(0, kServerPort)});
  const PacketBytes bytes = packet_bytes(config);
  const std::size_t hosts = scenario.workers + (scenario.colocated ? 0 : scenario.servers);
  LinkBytes links{.up = std::vector<double>(hosts), .down = std::vector<double>(hosts)};
  for (std::size_t partition = 0; partition < partitions_of(scenario); ++partition) {
    const std::size_t per_packet = config.codes_per_packet;
    const std::size_t packets = (codes_of(scenario, partition) + per_packet - 1) / per_packet;
    const std::size_t server = host_of_server(scenario, partition % scenario.servers);
    for (std::size_t worker = 0; worker < scenario.workers; ++worker) {
      if (worker != server) {
        links.up[worker] += static_cast<double>(packets * bytes.codes);
        links.down[server] += static_cast<double>(packets * bytes.codes);
        links.up[server] += static_cast<double>(packets * bytes.result);
        links.down[worker] += static_cast<double>(packets * bytes.result);
      }
    }
  }
  return links;
}

Ideal ideal_of(const Scenario& scenario) {
  const LinkBytes links = link_bytes(scenario);
  Ideal ideal;
  for (std::size_t host = 0; host < links.up.size(); ++host) {
    const double rate_bps = scenario.rate_bps * factor_of(scenario, host);
    ideal.transfer_s = std::max({ideal.transfer_s, links.up[host] * 8 / rate_bps, links.down[host] * 8 / rate_bps});
  }
  const SessionConfig config = session_config(scenario, {Network::address(0, kServerPort)});
  const double packets = static_cast<double>(scenario.parameters) / config.codes_per_packet;
  ideal.transfer_s = std::max(ideal.transfer_s, scenario.packet_s * packets *
                                                    std::max(1.0, static_cast<double>(scenario.workers) /
                                                                      static_cast<double>(scenario.servers)));
  const PacketBytes bytes = packet_bytes(config);
  const auto both_bits = static_cast<double>(8 * (bytes.codes + bytes.result));
  const double server_bps =
      scenario.rate_bps * (scenario.colocated ? scenario.slow_host_factor : scenario.server_factor);
  ideal.round_trip_s = 2 * (std::max(scenario.one_way_delay_s, scenario.later_one_way_delay_s) + scenario.wake_s) +
                       static_cast<double>(scenario.workers + 1) * scenario.packet_s +
                       both_bits / (scenario.rate_bps * scenario.slow_host_factor) +
                       static_cast<double>(scenario.workers) * both_bits / server_bps;
  return ideal;
}

Outcome run(const Scenario& scenario) { return Training(scenario).run(); }

double Outcome::median_s() const {
  std::vector<double> rest(step_s.begin() + (step_s.size() > 1 ? 1 : 0), step_s.end());
  if (rest.empty()) return 0;
  std::ranges::sort(rest);
  return rest[rest.size() / 2];
}

double Outcome::worst_s() const {
  const auto first = step_s.begin() + (step_s.size() > 1 ? 1 : 0);
  return first == step_s.end() ? 0 : *std::max_element(first, step_s.end());
}

double Outcome::longest_s() const { return step_s.empty() ? 0 : *std::ranges::max_element(step_s); }

std::string Scenario::text() const {
  std::ostringstream out;
  out << "workers=" << workers << " servers=" << servers << (colocated ? " colocated" : "") << " rate_bps=" << rate_bps
      << " slow_host_factor=" << slow_host_factor << " one_way_delay_s=" << one_way_delay_s
      << " server_factor=" << server_factor << " later_one_way_delay_s=" << later_one_way_delay_s
      << " policer_bytes=" << policer_bytes << " queue_bytes=" << queue_bytes << " loss=" << loss
      << " mark_fraction=" << mark_fraction << " parameters=" << parameters << " partitions=" << partitions_of(*this)
      << " steps=" << steps << " idle_s=" << idle_s << " straggler_s=" << straggler_s << " jitter_s=" << jitter_s
      << " competitor=" << static_cast<int>(competitor) << (growth == Growth::kCubic ? "" : " NewReno")
      << (back_pressure ? "" : " no back pressure") << " wake_s=" << wake_s << " packet_s=" << packet_s
      << " slots=" << slots << " seed=" << seed;
  return out.str();
}

}  // namespace thc::simulation
