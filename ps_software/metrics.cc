#include "metrics.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace thc::ps {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

/// Builds one family, adding up values of equal labels (the shares of the shards).
class Family {
 public:
  Family(std::string name, std::string help, MetricType type)
      : family_{.name = std::move(name), .help = std::move(help), .type = type, .metric = {}} {}

  void add(Labels labels, double value) {
    for (ClientMetric& metric : family_.metric) {
      if (metric.label == labels) return set(metric, get(metric) + value);
    }
    ClientMetric& metric = family_.metric.emplace_back();
    metric.label = std::move(labels);
    set(metric, value);
  }

  MetricFamily take() && { return std::move(family_); }

 private:
  bool is_counter() const { return family_.type == MetricType::Counter; }
  double get(const ClientMetric& metric) const { return is_counter() ? metric.counter.value : metric.gauge.value; }
  void set(ClientMetric& metric, double value) const {
    (is_counter() ? metric.counter.value : metric.gauge.value) = value;
  }

  MetricFamily family_;
};

template <typename Owner, typename Value>
struct Metric {
  const char* name;
  const char* help;
  Value Owner::* value;
};

constexpr Metric<PacketCounters, Counter> kPacketMetrics[] = {
    {"thc_ps_packets_total", "Packets received.", &PacketCounters::packets},
    {"thc_ps_bytes_total", "UDP payload bytes received.", &PacketCounters::bytes},
    {"thc_ps_completed_total", "Slots completed, each a result to all workers.", &PacketCounters::completed},
    {"thc_ps_partial_total", "Slots completed by a quorum without all workers.", &PacketCounters::partial},
    {"thc_ps_duplicates_total", "Copies of contributions to slots that wait for other workers.",
     &PacketCounters::duplicates},
    {"thc_ps_replays_total", "Results sent again to one worker.", &PacketCounters::replays},
    {"thc_ps_stale_total", "Packets of rounds that are over, answered with STRAGGLER.", &PacketCounters::stale},
    {"thc_ps_abstained_total", "Codes not added: a quorum had left their worker behind in the norms.",
     &PacketCounters::abstained},
    {"thc_ps_withheld_total", "Results that silent workers of a quorum were not sent.", &PacketCounters::withheld},
    {"thc_ps_partial_sums_sent_total", "Packets of this rack to the root (--upstream).", &PacketCounters::sent_up},
    {"thc_ps_root_results_total", "Results of the root passed on to this rack's workers.", &PacketCounters::passed_on},
};

// Workers are not here: they join every shard.
constexpr Metric<JobCounters, Counter> kJobMetrics[] = {
    {"thc_ps_slots", "Slots of the job.", &JobCounters::slots},
    {"thc_ps_slots_in_use", "Slots with a round that began and is not complete.", &JobCounters::slots_in_use},
    {"thc_ps_slot_memory_bytes", "Memory of the job's slots.", &JobCounters::memory_bytes},
};

constexpr Metric<io::IoCounters, std::uint64_t> kIoMetrics[] = {
    {"thc_ps_io_received_packets_total", "Datagrams received.", &io::IoCounters::rx_packets},
    {"thc_ps_io_received_bytes_total", "Bytes received.", &io::IoCounters::rx_bytes},
    {"thc_ps_io_malformed_total", "Frames that are no sound datagrams.", &io::IoCounters::rx_malformed},
    {"thc_ps_io_unauthenticated_total", "Datagrams without the tag of their job's key (--key-file).",
     &io::IoCounters::rx_unauthenticated},
    {"thc_ps_io_handed_over_total", "Frames of other threads: the device does not put them into their queues (DPDK).",
     &io::IoCounters::rx_handed_over},
    {"thc_ps_io_handoff_full_total", "Frames of other threads, and ARP for them, dropped because their ring was full.",
     &io::IoCounters::rx_handoff_full},
    {"thc_ps_io_sent_packets_total", "Datagrams sent.", &io::IoCounters::tx_packets},
    {"thc_ps_io_sent_bytes_total", "Bytes sent.", &io::IoCounters::tx_bytes},
    {"thc_ps_io_no_buffer_total", "Datagrams not sent for want of buffers.", &io::IoCounters::tx_no_buffer},
    {"thc_ps_io_send_errors_total", "Datagrams the kernel or device refused.", &io::IoCounters::tx_errors},
    {"thc_ps_io_no_neighbour_total", "Datagrams to next hops whose MAC is not known.",
     &io::IoCounters::tx_no_neighbour},
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

void collect_packets(const std::vector<const Shard*>& shards, std::vector<MetricFamily>& families) {
  for (const auto& metric : kPacketMetrics) {
    Family family(metric.name, metric.help, MetricType::Counter);
    for_each_packet_counters(shards, [&](const std::string& job, const PacketCounters& counters) {
      family.add({{"job", job}}, static_cast<double>((counters.*metric.value).get()));
    });
    families.push_back(std::move(family).take());
  }
  Family drops("thc_ps_dropped_packets_total", "Packets dropped without effect, malformed ones by what is wrong.",
               MetricType::Counter);
  Family errors("thc_ps_errors_sent_total", "ERROR messages sent.", MetricType::Counter);
  for_each_packet_counters(shards, [&](const std::string& job, const PacketCounters& counters) {
    add_reasons(drops, job, kDropNames, counters.drops);
    add_reasons(errors, job, wire::kErrorReasonNames, counters.errors);
  });
  families.push_back(std::move(drops).take());
  families.push_back(std::move(errors).take());
}

void collect_jobs(const std::vector<const Shard*>& shards, std::vector<MetricFamily>& families) {
  std::map<std::uint64_t, std::uint64_t> workers;  // by job, the most on any shard
  for (const Shard* shard : shards) {
    for (const JobCounters& job : shard->jobs()) {
      const std::uint64_t id = job.job_plus_one.get();
      if (id != 0) workers[id - 1] = std::max(workers[id - 1], job.workers.get());
    }
  }
  Family jobs("thc_ps_jobs", "Jobs at this moment.", MetricType::Gauge);
  jobs.add({}, static_cast<double>(workers.size()));
  families.push_back(std::move(jobs).take());
  Family joined("thc_ps_workers", "Workers that joined the job.", MetricType::Gauge);
  for (const auto& [id, count] : workers) joined.add({{"job", std::to_string(id)}}, static_cast<double>(count));
  families.push_back(std::move(joined).take());
  for (const auto& metric : kJobMetrics) {
    Family family(metric.name, metric.help, MetricType::Gauge);
    for (const Shard* shard : shards) {
      for (const JobCounters& job : shard->jobs()) {
        const std::uint64_t id = job.job_plus_one.get();
        if (id != 0) family.add({{"job", std::to_string(id - 1)}}, static_cast<double>((job.*metric.value).get()));
      }
    }
    families.push_back(std::move(family).take());
  }
}

void collect_io(const std::vector<const Shard*>& shards, std::vector<MetricFamily>& families) {
  for (const auto& metric : kIoMetrics) {
    Family family(metric.name, metric.help, MetricType::Counter);
    for (std::size_t i = 0; i < shards.size(); ++i) {
      const io::IoCounters totals = shards[i]->io_totals();
      family.add({{"shard", std::to_string(i)}}, static_cast<double>(totals.*metric.value));
    }
    families.push_back(std::move(family).take());
  }
}

}  // namespace

MetricsCollector::MetricsCollector(std::vector<const Shard*> shards)
    : shards_(std::move(shards)), started_(std::chrono::steady_clock::now()) {}

std::vector<MetricFamily> MetricsCollector::Collect() const {
  std::vector<MetricFamily> families;
  Family uptime("thc_ps_uptime_seconds", "Time since the start.", MetricType::Gauge);
  const std::chrono::duration<double> up = std::chrono::steady_clock::now() - started_;
  uptime.add({}, up.count());
  families.push_back(std::move(uptime).take());
  collect_jobs(shards_, families);
  collect_packets(shards_, families);
  collect_io(shards_, families);
  return families;
}

}  // namespace thc::ps
