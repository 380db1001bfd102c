#include "metrics.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

namespace thc::ps {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

/// `labels` must be new to the family.
void add(MetricFamily& family, Labels labels, double value) {
  ClientMetric& metric = family.metric.emplace_back();
  metric.label = std::move(labels);
  (family.type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
}

struct Jobs {
  explicit Jobs(const std::vector<const Shard*>& shards) {
    for (const Shard* shard : shards) {
      strays.push_back(&shard->strays());
      for (const JobCounters& job : shard->jobs()) {
        if (const std::uint64_t id = job.job_plus_one.get(); id != 0) of_id[id - 1].push_back(&job);
      }
    }
  }

  std::vector<const PacketCounters*> strays;
  std::map<std::uint64_t, std::vector<const JobCounters*>> of_id;
};

template <typename Counters, typename Read>
double sum(const std::vector<const Counters*>& shares, Read read) {
  std::uint64_t total = 0;
  for (const Counters* share : shares) total += read(*share).get();
  return static_cast<double>(total);
}

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

// Workers need a maximum instead: each joins every shard.
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
    {"thc_ps_io_damaged_total", "Datagrams that were damaged on the way (jobs without a key).",
     &io::IoCounters::rx_damaged},
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

/// Calls visit(job label, counters on the shards) per job, and with "none" for packets without a job.
template <typename Visit>
void for_each_packet_counters(const Jobs& jobs, Visit&& visit) {
  visit("none", jobs.strays);
  for (const auto& [id, shares] : jobs.of_id) {
    std::vector<const PacketCounters*> packets;
    for (const JobCounters* share : shares) packets.push_back(&share->packets);
    visit(std::to_string(id), packets);
  }
}

template <typename Names, typename Counters>
void add_reasons(MetricFamily& family, const std::string& job, const Names& names,
                 const std::vector<const PacketCounters*>& shares, Counters PacketCounters::* counters) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (*names[i] == '\0') continue;
    add(family, {{"job", job}, {"reason", names[i]}},
        sum(shares, [&](const PacketCounters& share) -> const Counter& { return (share.*counters)[i]; }));
  }
}

void collect_packets(const Jobs& jobs, std::vector<MetricFamily>& families) {
  for (const auto& metric : kPacketMetrics) {
    MetricFamily family{metric.name, metric.help, MetricType::Counter, {}};
    for_each_packet_counters(jobs, [&](const std::string& job, const std::vector<const PacketCounters*>& shares) {
      add(family, {{"job", job}}, sum(shares, std::mem_fn(metric.value)));
    });
    families.push_back(std::move(family));
  }
  MetricFamily drops{"thc_ps_dropped_packets_total",
                     "Packets dropped without effect, malformed ones by what is wrong.",
                     MetricType::Counter,
                     {}};
  MetricFamily errors{"thc_ps_errors_sent_total", "ERROR messages sent.", MetricType::Counter, {}};
  for_each_packet_counters(jobs, [&](const std::string& job, const std::vector<const PacketCounters*>& shares) {
    add_reasons(drops, job, kDropNames, shares, &PacketCounters::drops);
    add_reasons(errors, job, wire::kErrorReasonNames, shares, &PacketCounters::errors);
  });
  families.push_back(std::move(drops));
  families.push_back(std::move(errors));
}

void collect_jobs(const Jobs& jobs, std::vector<MetricFamily>& families) {
  MetricFamily count{"thc_ps_jobs", "Jobs at this moment.", MetricType::Gauge, {}};
  add(count, {}, static_cast<double>(jobs.of_id.size()));
  families.push_back(std::move(count));
  MetricFamily joined{"thc_ps_workers", "Workers that joined the job.", MetricType::Gauge, {}};
  for (const auto& [id, shares] : jobs.of_id) {
    std::uint64_t most = 0;  // they join every shard
    for (const JobCounters* share : shares) most = std::max(most, share->workers.get());
    add(joined, {{"job", std::to_string(id)}}, static_cast<double>(most));
  }
  families.push_back(std::move(joined));
  for (const auto& metric : kJobMetrics) {
    MetricFamily family{metric.name, metric.help, MetricType::Gauge, {}};
    for (const auto& [id, shares] : jobs.of_id) {
      add(family, {{"job", std::to_string(id)}}, sum(shares, std::mem_fn(metric.value)));
    }
    families.push_back(std::move(family));
  }
}

void collect_io(const std::vector<const Shard*>& shards, std::vector<MetricFamily>& families) {
  for (const auto& metric : kIoMetrics) {
    MetricFamily family{metric.name, metric.help, MetricType::Counter, {}};
    for (std::size_t i = 0; i < shards.size(); ++i) {
      const io::IoCounters totals = shards[i]->io_totals();
      add(family, {{"shard", std::to_string(i)}}, static_cast<double>(totals.*metric.value));
    }
    families.push_back(std::move(family));
  }
}

}  // namespace

MetricsCollector::MetricsCollector(std::vector<const Shard*> shards)
    : shards_(std::move(shards)), started_(std::chrono::steady_clock::now()) {}

std::vector<MetricFamily> MetricsCollector::Collect() const {
  std::vector<MetricFamily> families;
  MetricFamily uptime{"thc_ps_uptime_seconds", "Time since the start.", MetricType::Gauge, {}};
  const std::chrono::duration<double> up = std::chrono::steady_clock::now() - started_;
  add(uptime, {}, up.count());
  families.push_back(std::move(uptime));
  const Jobs jobs(shards_);
  collect_jobs(jobs, families);
  collect_packets(jobs, families);
  collect_io(shards_, families);
  return families;
}

}  // namespace thc::ps
