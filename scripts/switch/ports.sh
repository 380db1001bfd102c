#!/usr/bin/env bash
# Bring up front-panel and recirculation ports. May be repeated at any time.
#
# Usage: scripts/switch/ports.sh JOBS.toml [--dry-run]       (after load.sh)
# shellcheck source=scripts/switch/common.sh
source "$(dirname "$0")/common.sh"

install_part ports
