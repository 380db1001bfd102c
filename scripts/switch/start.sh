#!/usr/bin/env bash
# Start the agent that answers the workers' HELLO and GOODBYE. Does nothing when it runs already with this description.
#
# Usage: scripts/switch/start.sh JOBS.toml [--dry-run]       (after install.sh; needs CAP_NET_RAW)
# shellcheck source=scripts/switch/common.sh
source "$(dirname "$0")/common.sh"

readonly ready_s=30

if is_running "$state/agent.pid"; then
  if cmp -s "$jobs" "$state/agent.toml"; then
    echo "the agent runs already (process $(pid_of "$state/agent.pid"))"
    exit
  fi
  stop_process agent
fi
start_process agent "$thc" switch serve "$jobs" --target grpc
run cp "$jobs" "$state/agent.toml"
wait_until_ready "$ready_s" agent grep -qs "^agent ready" "$state/agent.log"
