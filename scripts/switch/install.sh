#!/usr/bin/env bash
# Install the job description: ports, multicast groups, tables. Jobs that run are closed, their workers say HELLO again.
# May be repeated at any time. Stops the agent, which would answer for the description before: start.sh starts it with
# this one.
#
# Usage: scripts/switch/install.sh JOBS.toml [--dry-run]       (after load.sh)
# shellcheck source=scripts/switch/common.sh
source "$(dirname "$0")/common.sh"

is_running "$state/agent.pid" && stop_process agent
options=(--target grpc)
$dry_run && options+=(--dry-run) # thc prints the script by itself
"$thc" switch install "$jobs" "${options[@]}"
