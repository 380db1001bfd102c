#!/usr/bin/env bash
# Fill the tables; jobs that run are closed, their workers say HELLO again. May be repeated at any time.
#
# Usage: scripts/switch/tables.sh JOBS.toml [--dry-run]       (after load.sh)
# shellcheck source=scripts/switch/common.sh
source "$(dirname "$0")/common.sh"

install_part tables
