# Sourced by the scripts of this folder: arguments, checks, and running commands or only printing them.
#
# All of them take the job description and --dry-run:   scripts/switch/NAME.sh JOBS.toml [--dry-run]
# Environment: SDE or SDE_INSTALL of the Intel / open-p4studio SDE; THC, the thc command (default: .venv/bin/thc, PATH);
# THC_SWITCH_STATE, folder for the compiled program, logs and process ids (default: build/switch).
# shellcheck shell=bash

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
readonly root
readonly me=${0##*/}
# Absolute: bf_switchd reads paths in the compiled program's .conf from another folder.
state=$(realpath -m "${THC_SWITCH_STATE:-$root/build/switch}")
readonly state

die() {
  echo "$me: $*" >&2
  exit 1
}

dry_run=false
jobs=
for argument in "$@"; do
  case $argument in
    --dry-run) dry_run=true ;;
    -h | --help)
      sed -n '2,/^# shellcheck/ { /^# shellcheck/d; s/^# \{0,1\}//p }' "$0"
      exit 0
      ;;
    -*) die "unknown option $argument; usage: $me JOBS.toml [--dry-run]" ;;
    *) jobs=$argument ;;
  esac
done
[[ -n $jobs ]] || die "which job description? usage: $me JOBS.toml [--dry-run]"
readonly dry_run jobs

# The thc command, wherever it is installed.
thc=${THC:-}
if [[ -z $thc ]]; then
  if [[ -x $root/.venv/bin/thc ]]; then thc=$root/.venv/bin/thc; else thc=$(command -v thc || true); fi
fi
[[ -n $thc ]] || die "thc is not installed: run 'make setup', or set THC to the command"
readonly thc

# The SDE's client library of the gRPC server, for thc.
for packages in "${SDE_INSTALL:-${SDE:-}/install}"/lib/python3*/site-packages{,/tofino}; do
  [[ ! -d $packages ]] || export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$packages"
done

# Sets what compiler and driver need to know of the switch.
describe_program() {
  local architecture
  { read -r architecture && read -r program; } < <("$thc" switch describe "$jobs" switch.architecture switch.program) ||
    exit 1
  # shellcheck disable=SC2034 # the script that calls this uses them
  case $architecture in
    tofino1) chip=tofino arch=tna options=() ;;
    # Without --no-clot, which the driver passes on to the compiler proper, bfas does not assemble it (p4/README.md).
    tofino2) chip=tofino2 arch=t2na options=(-DTHC_TOFINO2 -Xp4c=--no-clot) ;;
    *) die "$jobs describes a $architecture switch; these scripts are for Tofino (bmv2: see p4/README.md)" ;;
  esac
  compiled=$state/$chip
  # shellcheck disable=SC2034
  conf=$compiled/$program.conf
}

sde_install() {
  local folder=${SDE_INSTALL:-${SDE:+$SDE/install}}
  [[ -n $folder ]] || die "set SDE or SDE_INSTALL to the SDE's folder"
  $dry_run || [[ -d $folder ]] || die "$folder is not there; set SDE_INSTALL to the folder the SDE is installed in"
  echo "$folder"
}

# Run a command, or print it.
run() {
  if $dry_run; then
    printf '%q ' "$@"
    echo
  else
    "$@"
  fi
}

# When a process started, in ticks since boot, and the boot's id: a pid alone may be another process by now.
process_identity() {
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return # not $(<file): where it fails bash 5.2 ends the script
  stat=${stat##*) } # its name may hold blanks
  echo "$1 $(cut -d' ' -f20 <<<"$stat") $(</proc/sys/kernel/random/boot_id)"
}

# Process id in a pid file.
pid_of() { cut -d' ' -f1 "$1"; }

# Whether the process of a pid file runs.
is_running() { [[ -s $1 && $(process_identity "$(pid_of "$1")") == "$(cat "$1")" ]]; }

# Stop the process of a name, if it runs.
readonly stop_s=20
has_stopped() { ! is_running "$state/$1.pid"; }
stop_process() {
  if is_running "$state/$1.pid"; then
    run kill "$(pid_of "$state/$1.pid")"
    wait_for "$stop_s" "the end of $1" has_stopped "$1"
  else
    echo "$1 does not run"
  fi
  run rm -f "$state/$1.pid"
}

# Start a command in the background. $1: name of its pid file and log; the rest: the command.
start_process() {
  local name=$1 pid_file=$state/$1.pid
  shift
  if $dry_run; then
    run "$@"
    return
  fi
  mkdir -p "$state"
  setsid "$@" </dev/null >"$state/$name.log" 2>&1 &
  process_identity $! >"$pid_file" || true # it may have ended already
}

# Wait until a started process is ready. $1: seconds; $2: its name; the rest: a command that succeeds when it is.
wait_until_ready() {
  local deadline=$((SECONDS + $1)) name=$2
  shift 2
  $dry_run && return
  until "$@"; do
    if ! is_running "$state/$name.pid"; then
      tail -n 20 "$state/$name.log" >&2
      die "$name ended; its last lines are above ($state/$name.log)"
    fi
    ((SECONDS < deadline)) || die "$name is not ready after the deadline; see $state/$name.log"
    sleep 1
  done
}

# Wait for a condition. $1: seconds; $2: what for; the rest: a command that succeeds when it is there.
wait_for() {
  local deadline=$((SECONDS + $1)) what=$2
  shift 2
  $dry_run && return
  until "$@"; do
    ((SECONDS < deadline)) || die "$what is not there after the deadline; see $state/*.log"
    sleep 1
  done
}
