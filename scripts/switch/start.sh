#!/usr/bin/env bash
# Start the agent that answers the workers' HELLO and GOODBYE. Does nothing when it runs already.
#
# Usage: scripts/switch/start.sh JOBS.toml [--dry-run]       (after tables.sh; needs CAP_NET_RAW)
# shellcheck source=scripts/switch/common.sh
source "$(dirname "$0")/common.sh"

readonly ready_s=30

if is_running "$state/agent.pid"; then
  echo "the agent runs already (process $(<"$state/agent.pid"))"
  exit
fi
start_process agent "$thc" switch serve "$jobs" --target grpc
wait_for "$ready_s" "the agent" grep -qs "^agent ready" "$state/agent.log"
