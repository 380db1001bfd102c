#!/usr/bin/env bash
# Unpack Debian's arm64 libraries that a build needs into a cache folder of their own, for cmake/aarch64.cmake. Neither
# apt's nor dpkg's state on this machine changes. Ends with an error if the packages cannot be had.
set -euo pipefail

for program in aarch64-linux-gnu-g++ qemu-aarch64 apt-get dpkg-deb; do
  if ! command -v "$program" >/dev/null; then
    echo "$program is not on PATH: on Debian and x86-64, scripts/setup.sh all installs it"
    exit 1
  fi
done

readonly folder=${XDG_CACHE_HOME:-$HOME/.cache}/byteps_thc/aarch64
# Nothing of libc: the cross compiler brings that.
readonly packages=(libhwy-dev libhwy1 libcli11-dev libtomlplusplus-dev libspdlog-dev libfmt-dev libsodium-dev libsodium23
  prometheus-cpp-dev libprometheus-cpp-core1.0 libprometheus-cpp-pull1.0 libcivetweb1 zlib1g libgtest-dev libgmock-dev)
readonly stamp=$folder/root/packages

[[ "${packages[*]}" != "$(cat "$stamp" 2>/dev/null)" ]] || exit 0
rm -rf --one-file-system "$folder"
mkdir -p "$folder"/{apt/lists/partial,apt/archives/partial,debs,root}
apt=(apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User="$(id -un)"
  -o Dir::State="$folder/apt" -o Dir::State::status=/dev/null -o Dir::Cache="$folder/apt" -o Dir::Etc::sourceparts=-)
# Debian's own sources only: a machine's others need not have arm64.
sources=/etc/apt/sources.list
[[ ! -f /etc/apt/sources.list.d/debian.sources ]] || sources=/etc/apt/sources.list.d/debian.sources
apt+=(-o Dir::Etc::sourcelist="$sources")
"${apt[@]}" update
(cd "$folder/debs" && "${apt[@]}" download "${packages[@]}")
for package in "$folder"/debs/*.deb; do
  dpkg-deb --extract "$package" "$folder/root"
done
rm -rf --one-file-system "$folder/apt" "$folder/debs"
echo "${packages[*]}" >"$stamp"
