#!/usr/bin/env bash
# Install wheels in bare Debian systems, of which only Python is in there, and run them. As root, with debootstrap.
#
# Usage: scripts/release/roots.sh FOLDER VERSION SUITE...
#   FOLDER  wheels/X.Y has a wheel and what it depends on, pythons/X.Y names an interpreter of this host; roots/ is made, and kept
#   SUITE   of Debian: bookworm (glibc 2.36, Python 3.11), trixie (2.41, 3.13). MIRROR: where from, else where apt has Debian from
#
# A root has no network, no compiler and no pip.conf: pip takes wheels from the folder and builds nothing. Where its Python is
# another one, it sees the folder of this host's. Mounts are in a namespace of the run, and gone with it.
set -euo pipefail
# What --in-root runs has this folder only, beside the Debian system.
if [[ ${1:-} == --in-root ]]; then
  root=$2 shared=$3 python=$4 version=$5 requirement=$6
  prefix=$(sed -n 2p "$shared/python")
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs tmpfs "$root/dev/shm"
  mount -t tmpfs tmpfs "$root/tmp"
  mkdir -p "$root/shared"
  mount --bind "$shared" "$root/shared"
  if [[ -n $prefix ]]; then
    mkdir -p "$root$prefix"
    mount --bind "$prefix" "$root$prefix"
  fi
  printf '127.0.0.1 localhost %s\n' "$HOSTNAME" >"$root/etc/hosts" # what an installer writes, and torchrun asks for
  ip link set lo up
  # shellcheck disable=SC2016 # the arguments of the shell in there
  exec chroot "$root" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/tmp LANG=C.UTF-8 /bin/sh -euc '
    for compiler in cc c++ gcc g++; do
      if command -v "$compiler"; then echo "this root has a compiler"; exit 1; fi
    done
    "$1" -m venv /tmp/venv
    /tmp/venv/bin/pip install --quiet --no-index --only-binary :all: --find-links /shared/wheels "$3"
    /tmp/venv/bin/python -P /shared/try_wheel.py "$2"' sh "$python" "$version" "$requirement"
fi

folder=$(realpath "$1")
version=$2
readonly folder version
shift 2
cd "$(dirname "$0")"
readonly limit_s=1800

say() { printf 'release: %s\n' "$*"; }

fail() {
  echo "release: $*" >&2
  exit 1
}

[[ $EUID -eq 0 ]] || fail "roots are made and entered by root"
for program in debootstrap unshare chroot ip; do
  command -v "$program" >/dev/null || fail "$program is missing: apt-get install debootstrap iproute2 util-linux"
done

make_root() { # SUITE
  local suite=$1 mirror=${MIRROR:-}
  [[ ! -e $folder/roots/$suite.made ]] || return 0
  # shellcheck disable=SC2016 # apt's own variable
  [[ -n $mirror ]] || mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Label: Debian' | head -n 1)
  [[ -n $mirror ]] || fail "apt knows of no Debian here: give MIRROR=, or run apt-get update"
  say "making a root of Debian $suite (some minutes)"
  mkdir -p "$folder/roots"
  rm -rf --one-file-system "${folder:?}/roots/$suite"
  timeout "$limit_s" debootstrap --variant=minbase --include=python3,python3-venv "$suite" "$folder/roots/$suite" "$mirror" \
    >"$folder/roots/$suite.log" 2>&1 || fail "debootstrap: $(tail -n 3 "$folder/roots/$suite.log")"
  touch "$folder/roots/$suite.made"
}

# The root's own interpreter, if it is of that version; else this host's, with the folder that it is in.
interpreter() { # ROOT X.Y
  local root=$1 python prefix
  if [[ -x $root/usr/bin/python$2 ]]; then
    printf '%s\n\n' "/usr/bin/python$2"
    return
  fi
  python=$(<"$folder/pythons/$2")
  prefix=$("$python" -c 'import sys; print(sys.base_prefix)')
  [[ $prefix != /usr ]] || return 0
  printf '%s\n%s\n' "$prefix/bin/python$2" "$prefix"
}

try_wheel() { # SUITE X.Y
  local suite=$1 python=$2 root=$folder/roots/$1 shared=$folder/shared extra='[cli]' requirement
  rm -rf --one-file-system "$shared"
  mkdir -p "$shared"
  interpreter "$root" "$python" >"$shared/python"
  if [[ ! -s $shared/python ]]; then
    say "$suite has no Python $python, and this host's is in /usr: that wheel is not tried there"
    return
  fi
  cp -rl "$folder/wheels/$python" "$shared/wheels"
  cp try_wheel.py "$shared/"
  compgen -G "$shared/wheels/torch-*" >/dev/null && extra='[cli,torch]'
  requirement="byteps_thc$extra==$version"
  say "$suite, Python $python: $(head -n 1 "$shared/python") installs $requirement"
  timeout "$limit_s" unshare --mount --net --pid --fork --kill-child "$BASH" "$PWD/roots.sh" --in-root \
    "$root" "$shared" "$(head -n 1 "$shared/python")" "$version" "$requirement"
}

for suite in "$@"; do
  make_root "$suite"
  for python in "$folder"/wheels/*; do
    try_wheel "$suite" "$(basename "$python")"
  done
done
rm -rf --one-file-system "$folder/shared"
