#!/usr/bin/env bash
# Stop the agent and bf_switchd. The compiled program stays.
#
# Usage: scripts/switch/teardown.sh JOBS.toml [--dry-run]
# shellcheck source=scripts/switch/common.sh
source "$(dirname "$0")/common.sh"

stop_process agent
stop_process bf_switchd
