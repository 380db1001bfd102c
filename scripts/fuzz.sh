#!/usr/bin/env bash
# Run all libFuzzer targets side by side for a while; a crash fails and leaves its input in build/fuzz.
#
# Usage: scripts/fuzz.sh [--packets N [--limit SECONDS]] [SECONDS_EACH]
# --packets: go on, SECONDS_EACH at a time, until the targets have executed N units (each has a datagram or more),
# or for --limit seconds (default 3 hours).
set -euo pipefail
cd "$(dirname "$0")/.."

packets=0
limit_s=10800
seconds_each=20
while [[ $# -gt 0 ]]; do
  case $1 in
    --packets) packets=${2:?a number}; shift 2 ;;
    --limit) limit_s=${2:?seconds}; shift 2 ;;
    [1-9]*) seconds_each=$1; shift ;;
    *) echo "fuzz: unknown argument $1; see the head of $0" >&2; exit 2 ;;
  esac
done
readonly packets limit_s build=build/fuzz

cmake --preset fuzz --log-level=WARNING >/dev/null
cmake --build --preset fuzz --parallel
mapfile -t targets < <(find "$build" -type f -executable -name '*_fuzz*' -not -path '*/CMakeFiles/*')
if [[ ${#targets[@]} -eq 0 ]]; then
  echo "fuzz: preset fuzz built no *_fuzz* program" >&2
  exit 1
fi

fuzz() { # TARGET SECONDS
  local name corpus
  name=$(basename "$1")
  corpus=$build/corpus/$name
  mkdir -p "$corpus"
  exec "$1" -max_total_time="$2" -artifact_prefix="$build/$name-" -print_final_stats=1 "$corpus" 2>"$build/$name.log"
}

fuzz_all() { # SECONDS; adds to executed
  local target name units index failed=0 running=()
  for target in "${targets[@]}"; do
    fuzz "$target" "$1" &
    running+=($!)
  done
  for index in "${!targets[@]}"; do
    name=$(basename "${targets[index]}")
    if ! wait "${running[index]}"; then
      echo "fuzz: $name has failed:" >&2
      tail -n 40 "$build/$name.log" >&2
      failed=1
      continue
    fi
    units=$(awk '/stat::number_of_executed_units/ { print $2 }' "$build/$name.log")
    echo "$name: $units executions"
    executed=$((executed + units))
  done
  return "$failed"
}

trap 'running=$(jobs -p); [[ -z $running ]] || kill $running' EXIT
executed=0
SECONDS=0
while :; do
  left_s=$((limit_s - SECONDS))
  fuzz_all $((packets > 0 && left_s < seconds_each ? left_s : seconds_each)) || exit 1
  echo "$executed executions in $SECONDS s"
  if ((executed >= packets)); then break; fi
  if ((SECONDS >= limit_s)); then
    echo "fuzz: the time was over before $packets executions"
    break
  fi
done
