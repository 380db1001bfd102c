#!/usr/bin/env bash
# Static checks with the tools in .venv; the hooks of .pre-commit-config.yaml call this.
#
# Usage: scripts/lint.sh CHECK [FILES...]   (CHECK: one of the functions below)
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"

ruff_check() { ruff check "$@"; }
ruff_format() { ruff format --check "$@"; }
types() { mypy; }
cpp_format() { clang-format --dry-run -Werror "$@"; }
spelling() { codespell "$@"; }
shell() { shellcheck "$@"; }
generated() {
  python scripts/generate_wire.py --check
  python scripts/generate_tables.py --check
}

# clang-tidy reads the compile commands of the release preset; configuring is enough, nothing is built.
cpp_tidy() {
  cmake --preset release --log-level=WARNING >/dev/null
  printf '%s\0' "$@" | xargs -0 -n 1 -P "$(nproc)" clang-tidy --quiet -p build/release --warnings-as-errors='*' 2>/dev/null
}

format() {
  ruff check --fix .
  ruff format .
  git ls-files -z '*.h' '*.cc' | xargs -0 clang-format -i
}

check=${1:?check: ruff_check, ruff_format, types, cpp_format, cpp_tidy, spelling, shell, generated or format}
shift
"$check" "$@"
