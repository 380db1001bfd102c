#!/usr/bin/env bash
# Run all libFuzzer targets side by side for a while; a crash fails and leaves its input in build/fuzz.
#
# Usage: scripts/fuzz.sh [SECONDS]
set -euo pipefail
cd "$(dirname "$0")/.."
readonly seconds=${1:-20} build=build/fuzz

cmake --preset fuzz --log-level=WARNING >/dev/null
cmake --build --preset fuzz --parallel
mapfile -t targets < <(find "$build" -type f -executable -name '*_fuzz*' -not -path '*/CMakeFiles/*')
if [[ ${#targets[@]} -eq 0 ]]; then
  echo "fuzz: preset fuzz built no *_fuzz* program" >&2
  exit 1
fi

running=()
trap 'running=$(jobs -p); [[ -z $running ]] || kill $running' EXIT
for target in "${targets[@]}"; do
  name=$(basename "$target")
  mkdir -p "$build/corpus/$name"
  "$target" -max_total_time="$seconds" -artifact_prefix="$build/$name-" -print_final_stats=1 "$build/corpus/$name" \
    2>"$build/$name.log" &
  running+=($!)
done
failed=0
for index in "${!targets[@]}"; do
  name=$(basename "${targets[index]}")
  if wait "${running[index]}"; then
    echo "$name: $(awk '/stat::number_of_executed_units/ { print $2 }' "$build/$name.log") executions"
  else
    echo "fuzz: $name has failed:" >&2
    tail -n 40 "$build/$name.log" >&2
    failed=1
  fi
done
exit "$failed"
