#!/usr/bin/env bash
# Show the jobs, counters by what became of packets, and which processes run.
#
# Usage: scripts/switch/status.sh JOBS.toml [--dry-run]
# shellcheck source=scripts/switch/common.sh
source "$(dirname "$0")/common.sh"

for name in bf_switchd agent; do
  if is_running "$state/$name.pid"; then echo "$name runs (process $(pid_of "$state/$name.pid"))"; else echo "$name does not run"; fi
done
run "$thc" switch status "$jobs" --target grpc
