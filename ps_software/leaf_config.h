// A leaf's place below the root (docs/contributors/protocol.md, "Racks").
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/packet_io.h"
#include "thc/hello.h"

namespace thc::ps {

struct LeafConfig {
  static constexpr unsigned kSumBits = 8;
  static constexpr unsigned kLargestSum = 255;

  io::Endpoint root;                ///< of its first packet thread
  std::uint8_t rack = 0;            ///< from 0; the worker number at the root
  std::uint8_t racks = 0;           ///< R; the number of workers at the root
  std::uint8_t first_worker = 0;    ///< of this rack
  std::uint8_t rack_workers = 0;    ///< in this rack
  std::uint8_t num_workers = 0;     ///< n, of all racks
  std::uint8_t largest_rack = 0;    ///< in workers
  std::uint64_t first_workers = 0;  ///< bitmap of each rack's first worker
  /// Returns nullopt for an acceptable worker.
  std::optional<Refusal> refuse(const Hello& hello) const noexcept;
  JobConfig towards_root(const JobConfig& config) const;
  Refusal towards_workers(const Refusal& refusal) const noexcept;
  /// Bitmap of workers in other racks.
  std::uint64_t workers_elsewhere() const noexcept;
};

/// Parses --rack and --racks ("0-3", "4-7"). Throws ConfigurationError.
LeafConfig make_leaf(io::Endpoint root, std::uint32_t rack, const std::vector<std::string>& racks);

io::Endpoint shard_endpoint(io::Endpoint server, std::uint16_t shard) noexcept;

}  // namespace thc::ps
