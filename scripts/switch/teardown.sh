#!/usr/bin/env bash
# Stop the agent and bf_switchd. The compiled program stays.
#
# Usage: scripts/switch/teardown.sh JOBS.toml [--dry-run]
# shellcheck source=scripts/switch/common.sh
source "$(dirname "$0")/common.sh"

readonly stop_s=20

has_stopped() { ! is_running "$state/$1.pid"; }

for name in agent bf_switchd; do
  if is_running "$state/$name.pid"; then
    run kill "$(<"$state/$name.pid")"
    wait_for "$stop_s" "the end of $name" has_stopped "$name"
  else
    echo "$name does not run"
  fi
  run rm -f "$state/$name.pid"
done
