// Words about the memory of jobs, for the log.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "job_table.h"

namespace thc::ps {

/// "34 KiB": rounded up, so that --max-memory may be as much.
std::string size_text(std::size_t bytes);

/// How many slots a job has where `limits`, the first shard's, leave it to the memory.
std::string slots_text(const JobLimits& limits);

/// Why not even one job of usual packets has room on a server with such shards; nothing when it has.
std::optional<std::string> memory_warning(const JobLimits& limits);

}  // namespace thc::ps
