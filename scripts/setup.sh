#!/usr/bin/env bash
# Install missing packages and build the project into .venv. Fast, and without network, if nothing is missing.
#
# Usage: scripts/setup.sh demo|demo-switch|byteps|model-check|test|all
#   demo  build and run the project        test  demo + C++ and Python tests        all  test + byteps, lint, fuzzing, benchmarks
#   demo-switch  as demo                               byteps  demo + the needs of scripts/byteps/build.py
#   model-check  demo + the model checker spin
set -euo pipefail
cd "$(dirname "$0")/.."

readonly purpose=${1:-demo}
readonly venv=.venv
readonly stamps=$venv/.stamps

# Debian package names; python3-venv and python3-dev are added below if the interpreter needs them.
packages=(g++ cmake ninja-build ccache
  libhwy-dev libcli11-dev libtomlplusplus-dev libspdlog-dev libfmt-dev prometheus-cpp-dev libsodium-dev pkg-config libdpdk-dev
  iproute2)
test_packages=(libgtest-dev libgmock-dev ethtool git shellcheck)
byteps_packages=(make patch libnuma-dev)
build_tools=('scikit-build-core>=0.10' 'pybind11>=3' 'flit_core>=3.11')
extras=cli,torch
test_module=OFF
case $purpose in
  demo | demo-switch) ;;
  model-check) packages+=(spin) ;;
  byteps) packages+=("${byteps_packages[@]}") ;;
  test)
    packages+=("${test_packages[@]}")
    extras+=,test,docs
    test_module=ON
    ;;
  all)
    packages+=("${test_packages[@]}" "${byteps_packages[@]}" libbenchmark-dev clang-14 libclang-rt-14-dev spin tshark)
    packages+=(dpdk dpdk-dev) # dpdk-devbind.py and dpdk-testpmd
    [[ $(uname -m) != x86_64 ]] || packages+=(g++-aarch64-linux-gnu qemu-user) # preset aarch64
    # Daemons for some tests (`thc testbed`, the example for Slurm); not on people's machines, where they would start to
    # serve.
    [[ ${CI:-} != true ]] || packages+=(prometheus systemd slurm-wlm munge)
    extras+=,test,docs,lint
    test_module=ON
    ;;
  *)
    echo "setup: unknown purpose '$purpose' (demo, demo-switch, byteps, model-check, test or all)" >&2
    exit 2
    ;;
esac

say() { printf '\033[1m[%3ds] %s\033[0m\n' "$SECONDS" "$*"; }

find_python() {
  local candidate
  for candidate in "${PYTHON:-python3}" /usr/bin/python3 python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
}

# Debian splits venv support and the C headers off its interpreter; others (pyenv, conda) bring both.
python_packages() {
  local python=$1
  if [[ -z $python ]]; then
    echo python3 python3-venv python3-dev
    return
  fi
  "$python" -c 'import ensurepip' 2>/dev/null || echo python3-venv
  "$python" -c 'import os, sysconfig, sys
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' || echo python3-dev
}

install_packages() {
  local missing=() package root=()
  for package in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [[ ${#missing[@]} -eq 0 ]] && return
  if [[ $EUID -ne 0 ]]; then
    if ! command -v sudo >/dev/null; then
      echo "setup: not root and no sudo; as root, run: apt-get install --no-install-recommends ${missing[*]}" >&2
      exit 1
    fi
    root=(sudo)
  fi
  say "Installing Debian packages (compiler, libraries thc-ps and the kernels use): ${missing[*]}"
  local apt=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120)
  "${apt[@]}" update </dev/null
  "${apt[@]}" install --no-install-recommends --yes "${missing[@]}" </dev/null >"$log" || { cat "$log"; exit 1; }
}

digest() {
  find "$@" -type f -not -path '*/__pycache__/*' -print0 | sort -z | xargs -0 sha256sum | sha256sum
}

install_build_tools() {
  [[ "${build_tools[*]}" == "$(cat "$stamps/build-tools" 2>/dev/null)" ]] && return
  say "Installing Python build tools into $venv"
  "$venv/bin/pip" install -qq "${build_tools[@]}"
  echo "${build_tools[*]}" >"$stamps/build-tools"
}

# pip resolves and builds again only when the sources or the extras have changed since the last time.
install_project() {
  local state
  state="$extras $(digest byteps_thc p4/programs p4/thc_switch worker_dpdk ps_software tables cmake \
    tests/csrc/python tests/csrc/use_instruction_set.* tests/CMakeLists.txt \
    CMakeLists.txt pyproject.toml README.md LICENSE NOTICE scripts/constraints.txt)"
  [[ $state == "$(cat "$stamps/project" 2>/dev/null)" ]] && return
  install_build_tools
  say "Building byteps_thc and thc-ps, installing them and what they need ($extras) into $venv (a few minutes the first time)"
  "$venv/bin/pip" install -qq --no-build-isolation --constraint scripts/constraints.txt \
    --config-settings=cmake.define.THC_BUILD_TEST_MODULE="$test_module" ".[$extras]"
  echo "$state" >"$stamps/project"
}

# Separate distributions; they are reinstalled when they change.
install_distribution() { # FOLDER TITLE
  local state folder=$1 stamp=$stamps/${1##*/}
  state=$(digest "$folder")
  [[ $state == "$(cat "$stamp" 2>/dev/null)" ]] && return
  install_build_tools
  say "Installing $2 into $venv"
  "$venv/bin/pip" install -qq --no-build-isolation --constraint scripts/constraints.txt "./$folder"
  echo "$state" >"$stamp"
}

# A script in this folder imports the source folder, not the installed package, so the compiled modules must be in both.
# Links follow the last installation. .gitignore excludes them, and so do sdist and wheel.
link_modules() {
  local module
  for module in "$venv"/lib/python3*/site-packages/byteps_thc/_native/*.so; do
    ln -sfn "../../$module" byteps_thc/_native/
  done
  find byteps_thc/_native -maxdepth 1 -name '*.so' -xtype l -delete # of a Python that .venv had before
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
python=$(find_python || true)
if [[ ! -x $venv/bin/python ]]; then
  # shellcheck disable=SC2207 # package names have no spaces
  packages+=($(python_packages "$python"))
fi
if command -v apt-get >/dev/null; then
  install_packages
else
  echo "setup: no apt-get here; make sure that these Debian packages' equivalents are installed: ${packages[*]}" >&2
fi
if ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
  python=$(find_python || true)
  if [[ -z $python ]]; then
    echo "setup: Python 3.11 or newer is needed; set PYTHON=/path/to/python3" >&2
    exit 1
  fi
  say "Creating $venv with $("$python" --version)"
  "$python" -m venv --clear "$venv"
fi
mkdir -p "$stamps"
install_project
install_distribution p4/thc_p4_model "the P4 model"
install_distribution lab "thc's commands demo, demo-switch and testbed"
link_modules
