#include "metrics.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace thc::ps {
namespace {

using Labels = std::vector<std::pair<const char*, std::string>>;

/// One family in Prometheus's text format, version 0.0.4; adds up values of equal labels (the shares of the shards).
/// Values of labels are numbers and the names in our tables, so nothing in them needs escapes.
class Family {
 public:
  Family(const char* name, const char* help, const char* type) : name_(name), help_(help), type_(type) {}

  void add(const Labels& labels, double value) {
    std::string key;
    for (const auto& [label, text] : labels) {
      key += fmt::format("{}{}=\"{}\"", key.empty() ? "" : ",", label, text);
    }
    for (auto& [known, sum] : values_) {
      if (known == key) {
        sum += value;
        return;
      }
    }
    values_.emplace_back(std::move(key), value);
  }

  void write(std::string& text) const {
    text += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name_, help_, name_, type_);
    for (const auto& [labels, value] : values_) {
      text +=
          labels.empty() ? fmt::format("{} {}\n", name_, value) : fmt::format("{}{{{}}} {}\n", name_, labels, value);
    }
  }

 private:
  const char* name_;
  const char* help_;
  const char* type_;
  std::vector<std::pair<std::string, double>> values_;
};

constexpr const char* kCounter = "counter";
constexpr const char* kGauge = "gauge";

struct PacketMetric {
  const char* name;
  const char* help;
  Counter PacketCounters::* counter;
};

constexpr PacketMetric kPacketMetrics[] = {
    {"thc_ps_packets_total", "Packets received.", &PacketCounters::packets},
    {"thc_ps_bytes_total", "UDP payload bytes received.", &PacketCounters::bytes},
    {"thc_ps_completed_total", "Slots completed, each a result to all workers.", &PacketCounters::completed},
    {"thc_ps_partial_total", "Slots completed by a quorum without all workers.", &PacketCounters::partial},
    {"thc_ps_duplicates_total", "Copies of contributions to slots that wait for other workers.",
     &PacketCounters::duplicates},
    {"thc_ps_replays_total", "Results sent again to one worker.", &PacketCounters::replays},
    {"thc_ps_stale_total", "Packets of rounds that are over, answered with STRAGGLER.", &PacketCounters::stale},
};

struct JobMetric {
  const char* name;
  const char* help;
  Counter JobCounters::* gauge;
};

// Workers are not here: they join every shard.
constexpr JobMetric kJobMetrics[] = {
    {"thc_ps_slots", "Slots of the job.", &JobCounters::slots},
    {"thc_ps_slots_in_use", "Slots with a round that began and is not complete.", &JobCounters::slots_in_use},
    {"thc_ps_slot_memory_bytes", "Memory of the job's slots.", &JobCounters::memory_bytes},
};

struct IoMetric {
  const char* name;
  const char* help;
  Counter IoTotals::* counter;
};

constexpr IoMetric kIoMetrics[] = {
    {"thc_ps_io_received_packets_total", "Datagrams received.", &IoTotals::rx_packets},
    {"thc_ps_io_received_bytes_total", "Bytes received.", &IoTotals::rx_bytes},
    {"thc_ps_io_malformed_total", "Frames that are no sound datagrams.", &IoTotals::rx_malformed},
    {"thc_ps_io_sent_packets_total", "Datagrams sent.", &IoTotals::tx_packets},
    {"thc_ps_io_sent_bytes_total", "Bytes sent.", &IoTotals::tx_bytes},
    {"thc_ps_io_no_buffer_total", "Datagrams not sent for want of buffers.", &IoTotals::tx_no_buffer},
    {"thc_ps_io_send_errors_total", "Datagrams the kernel or device refused.", &IoTotals::tx_errors},
    {"thc_ps_io_no_neighbour_total", "Datagrams to next hops whose MAC is not known.", &IoTotals::tx_no_neighbour},
};

/// Calls visit(job label, counters) for the packets of each job and, as "none", of no job.
template <typename Visit>
void for_each_packet_counters(const std::vector<const Shard*>& shards, Visit&& visit) {
  for (const Shard* shard : shards) {
    visit("none", shard->strays());
    for (const JobCounters& job : shard->jobs()) {
      if (const auto id = job.job_plus_one.get(); id != 0) visit(std::to_string(id - 1), job.packets);
    }
  }
}

template <typename Names, typename Counters>
void add_reasons(Family& family, const std::string& job, const Names& names, const Counters& counters) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (*names[i] == '\0') continue;
    family.add({{"job", job}, {"reason", names[i]}}, static_cast<double>(counters[i].get()));
  }
}

void collect_packets(const std::vector<const Shard*>& shards, std::string& text) {
  for (const PacketMetric& metric : kPacketMetrics) {
    Family family(metric.name, metric.help, kCounter);
    for_each_packet_counters(shards, [&](const std::string& job, const PacketCounters& counters) {
      family.add({{"job", job}}, static_cast<double>((counters.*metric.counter).get()));
    });
    family.write(text);
  }
  Family drops("thc_ps_dropped_packets_total", "Packets dropped without effect, malformed ones by what is wrong.",
               kCounter);
  Family errors("thc_ps_errors_sent_total", "ERROR messages sent.", kCounter);
  for_each_packet_counters(shards, [&](const std::string& job, const PacketCounters& counters) {
    add_reasons(drops, job, kDropNames, counters.drops);
    add_reasons(errors, job, wire::kErrorReasonNames, counters.errors);
  });
  drops.write(text);
  errors.write(text);
}

void collect_jobs(const std::vector<const Shard*>& shards, std::string& text) {
  std::map<std::uint64_t, std::uint64_t> workers;  // by job, the most on any shard
  for (const Shard* shard : shards) {
    for (const JobCounters& job : shard->jobs()) {
      const std::uint64_t id = job.job_plus_one.get();
      if (id != 0) workers[id - 1] = std::max(workers[id - 1], job.workers.get());
    }
  }
  Family jobs("thc_ps_jobs", "Jobs at this moment.", kGauge);
  jobs.add({}, static_cast<double>(workers.size()));
  jobs.write(text);
  Family joined("thc_ps_workers", "Workers that joined the job.", kGauge);
  for (const auto& [id, count] : workers) joined.add({{"job", std::to_string(id)}}, static_cast<double>(count));
  joined.write(text);
  for (const JobMetric& metric : kJobMetrics) {
    Family family(metric.name, metric.help, kGauge);
    for (const Shard* shard : shards) {
      for (const JobCounters& job : shard->jobs()) {
        const std::uint64_t id = job.job_plus_one.get();
        if (id != 0) family.add({{"job", std::to_string(id - 1)}}, static_cast<double>((job.*metric.gauge).get()));
      }
    }
    family.write(text);
  }
}

void collect_io(const std::vector<const Shard*>& shards, std::string& text) {
  for (const IoMetric& metric : kIoMetrics) {
    Family family(metric.name, metric.help, kCounter);
    for (std::size_t i = 0; i < shards.size(); ++i) {
      const IoTotals& totals = shards[i]->io_totals();
      family.add({{"shard", std::to_string(i)}}, static_cast<double>((totals.*metric.counter).get()));
    }
    family.write(text);
  }
}

}  // namespace

MetricsCollector::MetricsCollector(std::vector<const Shard*> shards)
    : shards_(std::move(shards)), started_(std::chrono::steady_clock::now()) {}

std::string MetricsCollector::text() const {
  std::string text;
  Family uptime("thc_ps_uptime_seconds", "Time since the start.", kGauge);
  const std::chrono::duration<double> up = std::chrono::steady_clock::now() - started_;
  uptime.add({}, up.count());
  uptime.write(text);
  collect_jobs(shards_, text);
  collect_packets(shards_, text);
  collect_io(shards_, text);
  return text;
}

}  // namespace thc::ps
