#!/usr/bin/env bash
# Everything from source to a switch that workers can join. May be repeated: steps that are done do nothing, but the
# tables are filled anew.
#
# Usage: scripts/switch/deploy.sh JOBS.toml [--dry-run]
# shellcheck source=scripts/switch/common.sh
source "$(dirname "$0")/common.sh"

for step in compile load install start status; do
  echo "== $step"
  "$(dirname "$0")/$step.sh" "$@"
done
