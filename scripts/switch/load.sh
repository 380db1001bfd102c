#!/usr/bin/env bash
# Start bf_switchd with the compiled program. Does nothing when it runs already.
#
# Usage: scripts/switch/load.sh JOBS.toml [--dry-run]       (after compile.sh; needs root for the chip's device)
# shellcheck source=scripts/switch/common.sh
source "$(dirname "$0")/common.sh"

describe_program
install=$(sde_install)
readonly ready_s=120

has_server() { "$thc" switch status "$jobs" --target grpc >/dev/null 2>&1; }

if is_running "$state/bf_switchd.pid"; then
  echo "bf_switchd runs already (process $(pid_of "$state/bf_switchd.pid"))"
  exit
fi
if ! $dry_run; then
  [[ -f $conf ]] || die "$conf is not there: run scripts/switch/compile.sh $jobs first"
  ! pgrep -x bf_switchd >/dev/null || die "another bf_switchd runs: stop it, or set THC_SWITCH_STATE to its folder"
  [[ -x $install/bin/bf_switchd ]] || die "$install/bin/bf_switchd is not there: build the SDE's drivers"
fi
start_process bf_switchd "$install/bin/bf_switchd" --install-dir "$install" --conf-file "$conf" --background \
  --server-listen-local-only
wait_until_ready "$ready_s" bf_switchd has_server
