#!/usr/bin/env bash
# Bring up a Tofino switch that workers can join, from source. Each step may be repeated at any time.
#
# Usage: scripts/switch.sh STEP JOBS.toml [--dry-run]
#   compile   compile the P4 program for the chip of the job description, unless the result is newer than the sources
#   load      start bf_switchd with it, unless it runs; needs root for the chip's device
#   install   install the job description: ports, multicast groups, tables. Closes running jobs, so their workers say
#             HELLO again. Stops the agent, which would answer for the description before: start starts it with this one
#   start     start the agent that answers the workers' HELLO and GOODBYE, unless it runs with this description; needs
#             CAP_NET_RAW
#   status    show the jobs, packet counters by reason, and running processes
#   deploy    all of these, one after the other
#   teardown  stop the agent and bf_switchd. The compiled program stays. Needs root if root has started them
#
# --dry-run prints the commands, and needs no SDE: it prints SDE_INSTALL for an unknown folder.
#
# Environment: SDE or SDE_INSTALL of the Intel / open-p4studio SDE; THC, the thc command (default: .venv/bin/thc, PATH);
# P4C, the compiler (default: the SDE's bf-p4c, or p4c on PATH with Tofino back end);
# THC_SWITCH_STATE, folder for the compiled program, logs and process ids (default: build/switch).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Absolute: bf_switchd reads paths in the compiled program's .conf from another folder.
state=$(realpath -m "${THC_SWITCH_STATE:-$root/build/switch}")
readonly root state usage='usage: scripts/switch.sh STEP JOBS.toml [--dry-run]'
readonly load_s=120 start_s=30 stop_s=20

die() {
  echo "switch.sh: $*" >&2
  exit 1
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

# A dry run without an SDE shows SDE_INSTALL in place of its folder.
sde_install() {
  local folder=${SDE_INSTALL:-${SDE:+$SDE/install}}
  if $dry_run; then folder=${folder:-SDE_INSTALL}; fi
  [[ -n $folder ]] || die "set SDE or SDE_INSTALL to the SDE's folder"
  $dry_run || [[ -d $folder ]] || die "$folder is not there; set SDE_INSTALL to the folder the SDE is installed in"
  echo "$folder"
}

# A process that this script started holds a lock on the file with its id. $1: its name, as in all that follows.
readonly locked=75
is_running() {
  local status=0
  [[ -s $state/$1.pid ]] || return 1
  flock --nonblock --conflict-exit-code $locked "$state/$1.pid" true || status=$?
  ((status == 0 || status == locked)) || die "flock $state/$1.pid fails (code $status)"
  ((status == locked))
}
say_running() { if is_running "$1"; then echo "$1 runs (process $(<"$state/$1.pid"))"; else echo "$1 does not run"; fi; }

stop_process() {
  local deadline=$((SECONDS + stop_s))
  if is_running "$1"; then
    if ! run kill "$(<"$state/$1.pid")" && is_running "$1"; then
      die "$1 cannot be stopped by this user: run it as root (sudo -E scripts/switch.sh ...)"
    fi
    until $dry_run || ! is_running "$1"; do
      ((SECONDS < deadline)) || die "$1 has not stopped after $stop_s s; see $state/$1.log"
      sleep 0.2
    done
  else
    echo "$1 does not run"
  fi
  run rm -f "$state/$1.pid"
}

# Start a command in the background, and wait until it is ready. $2: seconds; $3: a command that succeeds when it is;
# the rest: the command.
start_process() {
  local name=$1 deadline=$((SECONDS + $2)) is_ready=$3
  shift 3
  if $dry_run; then
    run "$@"
    return
  fi
  mkdir -p "$state"
  : >"$state/$name.log" # that $is_ready reads no line of an earlier start
  # The id is written under the lock, which somebody else's is_running may have for a moment.
  # shellcheck disable=SC2016 # the inner shell expands them
  setsid flock --timeout 5 --no-fork "$state/$name.pid" \
    bash -c 'echo $$ >"$1"; shift; exec "$@"' _ "$state/$name.pid" "$@" </dev/null >>"$state/$name.log" 2>&1 &
  until $is_ready; do
    if ! kill -0 $! 2>/dev/null; then
      tail -n 20 "$state/$name.log" >&2
      die "$name ended; its last lines are above ($state/$name.log)"
    fi
    ((SECONDS < deadline)) || die "$name is not ready after the deadline; see $state/$name.log"
    sleep 0.5
  done
}

# Sets the switch's properties for compiler and driver.
describe_program() {
  local architecture
  { read -r architecture && read -r program; } < <("$thc" switch describe "$jobs" switch.architecture switch.program) ||
    exit 1
  case $architecture in
    tofino1) chip=tofino arch=tna options=() ;;
    # Without --no-clot, which the driver passes on to the compiler proper, bfas does not assemble it (p4/README.md).
    tofino2) chip=tofino2 arch=t2na options=(-DTHC_TOFINO2 -Xp4c=--no-clot) ;;
    *) die "$jobs describes a $architecture switch; these scripts are for Tofino (bmv2: see p4/README.md)" ;;
  esac
  compiled=$state/$chip
  conf=$compiled/$program.conf
}

step_compile() {
  describe_program
  local source_file=$root/p4/programs/tna/$program.p4 compiler=${P4C:-}
  [[ -f $source_file ]] || die "$source_file is not there: switch.program of $jobs names no program of p4/programs/tna"
  if [[ -z $compiler ]]; then
    if [[ -n ${SDE_INSTALL:-}${SDE:-} ]]; then compiler=$(sde_install)/bin/bf-p4c; else compiler=$(command -v p4c || true); fi
  fi
  if $dry_run; then compiler=${compiler:-$(sde_install)/bin/bf-p4c}; fi
  [[ -n $compiler ]] || die "no P4 compiler: set SDE_INSTALL (bf-p4c), or P4C to a p4c with Tofino back end"
  if [[ -f $conf && -z $(find "$root/p4/programs" -name '*.p4' -newer "$conf" -print -quit) ]]; then
    echo "compiled already: $conf"
    return
  fi
  run mkdir -p "$compiled"
  run "$compiler" --target "$chip" --arch "$arch" "${options[@]}" -o "$compiled" "$source_file"
  $dry_run || [[ -f $conf ]] || die "the compiler wrote no $conf; see its messages above"
}

has_server() { "$thc" switch status "$jobs" --target bfshell >/dev/null 2>&1; }

step_load() {
  describe_program
  local install
  install=$(sde_install)
  if is_running bf_switchd; then
    say_running bf_switchd
    return
  fi
  if ! $dry_run; then
    [[ -f $conf ]] || die "$conf is not there: run scripts/switch.sh compile $jobs first"
    ! pgrep -x bf_switchd >/dev/null || die "another bf_switchd runs: stop it, or set THC_SWITCH_STATE to its folder"
    [[ -x $install/bin/bf_switchd ]] || die "$install/bin/bf_switchd is not there: build the SDE's drivers"
  fi
  start_process bf_switchd "$load_s" has_server "$install/bin/bf_switchd" --install-dir "$install" --conf-file "$conf" \
    --background --server-listen-local-only
}

step_install() {
  local action=install
  if is_running agent; then stop_process agent; fi
  if $dry_run; then action=plan; fi
  "$thc" switch "$action" "$jobs" --target bfshell
}

is_agent_ready() { grep -qs "^agent ready" "$state/agent.log"; }

step_start() {
  if is_running agent; then
    if cmp -s "$jobs" "$state/agent.toml"; then
      say_running agent
      return
    fi
    stop_process agent
  fi
  run mkdir -p "$state"
  run cp "$jobs" "$state/agent.toml"
  # The SDE's client library of the gRPC server, for thc.
  local packages
  for packages in "${SDE_INSTALL:-${SDE:-}/install}"/lib/python3*/site-packages{,/tofino}; do
    [[ ! -d $packages ]] || export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$packages"
  done
  start_process agent "$start_s" is_agent_ready "$thc" switch serve "$jobs" --target grpc
}

step_status() {
  say_running bf_switchd
  say_running agent
  run "$thc" switch status "$jobs" --target bfshell
}

step_deploy() {
  local step
  for step in compile load install start status; do
    echo "== $step"
    "step_$step"
  done
}

step_teardown() {
  stop_process agent
  stop_process bf_switchd
}

dry_run=false step='' jobs=''
for argument in "$@"; do
  case $argument in
    --dry-run) dry_run=true ;;
    -h | --help)
      sed -n '2,/^set/ { /^set/d; s/^# \{0,1\}//p }' "$0"
      exit
      ;;
    -*) die "unknown option $argument; $usage" ;;
    *) if [[ -z $step ]]; then step=$argument; else jobs=$argument; fi ;;
  esac
done
declare -F "step_${step:-}" >/dev/null || die "which step? compile, load, install, start, status, deploy or teardown; $usage"
[[ -n $jobs ]] || die "which job description? $usage"

# The thc command, wherever it is installed.
thc=${THC:-}
if [[ -z $thc ]]; then
  if [[ -x $root/.venv/bin/thc ]]; then thc=$root/.venv/bin/thc; else thc=$(command -v thc || true); fi
fi
[[ -n $thc ]] || die "thc is not installed: run 'make setup', or set THC to the command"
"step_$step"
