#!/usr/bin/env bash
# Run every libFuzzer target for a while; a crash fails and leaves its input in build/fuzz.
#
# Usage: scripts/fuzz.sh [SECONDS_EACH]
set -euo pipefail
cd "$(dirname "$0")/.."

readonly seconds_each=${1:-20}
readonly build=build/fuzz

cmake --preset fuzz --log-level=WARNING >/dev/null
cmake --build --preset fuzz --parallel
mapfile -t targets < <(find "$build" -type f -executable -name '*_fuzz*' -not -path '*/CMakeFiles/*')
if [[ ${#targets[@]} -eq 0 ]]; then
  echo "fuzz: preset fuzz built no *_fuzz* program" >&2
  exit 1
fi
for target in "${targets[@]}"; do
  name=$(basename "$target")
  echo "Fuzzing $name for ${seconds_each} s"
  corpus=$build/corpus/$name
  mkdir -p "$corpus"
  "$target" -max_total_time="$seconds_each" -artifact_prefix="$build/$name-" -print_final_stats=1 "$corpus" 2>"$build/$name.log" ||
    { tail -n 40 "$build/$name.log"; exit 1; }
  grep -E 'stat::number_of_executed_units' "$build/$name.log"
done
