#!/usr/bin/env bash
# Build the C++ tests with one of the presets (release, asan-ubsan, tsan, aarch64) and run them; aarch64 under QEMU, if
# its packages can be had.
#
# Usage: scripts/cpp_tests.sh PRESET [JOBS]
set -euo pipefail
cd "$(dirname "$0")/.."

readonly preset=${1:?preset: release, asan-ubsan, tsan or aarch64}
readonly jobs=${2:-$(nproc)}

echo "C++ tests, preset $preset"
if [[ $preset == aarch64 ]] && ! reason=$(scripts/aarch64_root.sh 2>&1); then
  echo "C++ tests, preset aarch64: SKIPPED: $reason" >&2
  exit 0
fi
cmake --preset "$preset" --log-level=WARNING >/dev/null
cmake --build --preset "$preset" --parallel "$jobs"
# Tests that wait for sockets share the cores with computing ones. Each has its own deadline, so run few at once. The
# limit ends a test that hangs; the longest takes half a minute of a fast core under ThreadSanitizer.
# A sanitizer's dlopen() ignores its caller's RUNPATH.
export LD_LIBRARY_PATH=$PWD/build/$preset/lib
ctest --preset "$preset" --parallel "$jobs" --timeout 900
