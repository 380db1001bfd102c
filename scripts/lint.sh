#!/usr/bin/env bash
# Static checks with the tools in .venv; the hooks of .pre-commit-config.yaml call this.
#
# Usage: scripts/lint.sh ruff|types|cpp-format|cpp-tidy|spelling|shell|containers|generated|words|sizes|format [FILES...]
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"

# clang-tidy reads the compile commands of a build folder of its own; configuring is enough, nothing is built.
cpp_tidy() {
  local build=build/lint byteps=() files=("$@") file
  # Code for BytePS is checked if BytePS's source is present: after make byteps.
  for file in build/byteps/byteps-*/byteps/server; do
    [[ -d $file ]] && byteps=(-DTHC_BYTEPS_SOURCE="$PWD/${file%/byteps/server}")
  done
  if [[ ${#byteps[@]} -eq 0 ]]; then
    files=()
    for file in "$@"; do
      [[ $file == byteps_thc/csrc/byteps/* ]] || files+=("$file")
    done
  fi
  cmake --preset release -B "$build" --log-level=WARNING -DTHC_BUILD_BENCHMARKS=ON -DTHC_BUILD_PYTHON=ON \
    -DTHC_BUILD_TEST_MODULE=ON -DPython_EXECUTABLE="$(command -v python)" -Dpybind11_DIR="$(python -m pybind11 --cmakedir)" "${byteps[@]}" >/dev/null
  printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy --quiet -p "$build" --warnings-as-errors='*' 2>/dev/null
}

format() {
  ruff check --fix .
  ruff format .
  git ls-files -z '*.h' '*.c' '*.cc' ':!*/wire_layout.h' | xargs -0 clang-format -i
}

check=${1:?which check}
shift
case $check in
  ruff) ruff check "$@" && ruff format --check "$@" ;;
  types) mypy && MYPYPATH=scripts/byteps mypy scripts/byteps/build.py ;;
  cpp-format) clang-format --dry-run -Werror "$@" ;;
  cpp-tidy) cpp_tidy "$@" ;;
  spelling) codespell "$@" ;;
  shell) shellcheck -x "$@" ;; # -x: follow sourced files
  # Versions of packages are not pinned: Debian 12 keeps the newest of each only.
  containers) hadolint --ignore DL3008 "$@" ;;
  generated)
    python scripts/generate_wire.py --check
    python scripts/generate_tables.py --check
    python scripts/generate_settings.py --check
    ;;
  words) python evaluation/words.py --check ;;
  sizes) python evaluation/sizes.py --check ;;
  format) format ;;
  *)
    echo "lint: unknown check '$check'" >&2
    exit 2
    ;;
esac
