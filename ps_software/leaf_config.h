// Racks (docs/contributors/protocol.md, "Racks"): what a leaf, the server of one rack, knows of its place below the
// root.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/packet_io.h"
#include "thc/hello.h"

namespace thc::ps {

struct LeafConfig {
  /// Partial sums travel as codes of 8 bits.
  static constexpr unsigned kSumBits = 8;
  static constexpr unsigned kLargestSum = 255;

  io::Endpoint root;                ///< of its first packet thread
  std::uint8_t rack = 0;            ///< the rack of this server, from 0; its worker number towards the root
  std::uint8_t racks = 0;           ///< R; the number of workers towards the root
  std::uint8_t first_worker = 0;    ///< of this rack
  std::uint8_t rack_workers = 0;    ///< in this rack
  std::uint8_t num_workers = 0;     ///< n, of all racks
  std::uint8_t largest_rack = 0;    ///< workers
  std::uint64_t first_workers = 0;  ///< of all racks, a bitmap: who is where

  /// Why this server does not take such a worker; nothing when it does.
  std::optional<Refusal> refuse(const Hello& hello) const noexcept;

  /// What this server says to the root about a job whose workers say `config`.
  JobConfig towards_root(const JobConfig& config) const;
  /// What the root refuses, in the terms of workers.
  Refusal towards_workers(const Refusal& refusal) const noexcept;

  /// Of the n workers of the job, those of the other racks.
  std::uint64_t workers_elsewhere() const noexcept;
};

/// Of --rack, and --racks ("0-3", "4-7"). Throws ConfigurationError that says what is wrong with them.
LeafConfig make_leaf(io::Endpoint root, std::uint32_t rack, const std::vector<std::string>& racks);

/// Where packet thread `shard` of a server listens.
io::Endpoint shard_endpoint(io::Endpoint server, std::uint16_t shard) noexcept;

}  // namespace thc::ps
