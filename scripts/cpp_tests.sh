#!/usr/bin/env bash
# Build the C++ tests with one of the presets (release, asan-ubsan, tsan) and run them.
#
# Usage: scripts/cpp_tests.sh PRESET [JOBS]
set -euo pipefail
cd "$(dirname "$0")/.."

readonly preset=${1:?preset: release, asan-ubsan or tsan}
readonly jobs=${2:-$(nproc)}

if command -v ccache >/dev/null; then
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache
fi
echo "C++ tests, preset $preset"
cmake --preset "$preset" --log-level=WARNING >/dev/null
cmake --build --preset "$preset" --parallel "$jobs"
# Tests that wait for sockets share the cores with those that compute: a test has its own deadline, so run few at once.
# The limit ends one that hangs; the longest that computes takes half a minute of a fast core under ThreadSanitizer.
# A sanitizer's dlopen() does not look into the RUNPATH of who calls it.
export LD_LIBRARY_PATH=$PWD/build/$preset/lib
ctest --preset "$preset" --parallel "$jobs" --timeout 900
