#!/usr/bin/env bash
# Set up multicast groups. May be repeated at any time.
#
# Usage: scripts/switch/multicast.sh JOBS.toml [--dry-run]       (after load.sh)
# shellcheck source=scripts/switch/common.sh
source "$(dirname "$0")/common.sh"

install_part multicast
