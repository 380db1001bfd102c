#!/usr/bin/env bash
# Build the Debian package of thc-ps into build/deb: scripts/deb.sh
#
# It needs the packages of scripts/setup.sh. Libraries that it links with become its dependencies.
set -euo pipefail
cd "$(dirname "$0")/.."

# The distribution's flags, as for its own packages; cmake has no CPPFLAGS.
if command -v dpkg-buildflags >/dev/null; then
  CXXFLAGS="$(dpkg-buildflags --get CPPFLAGS) $(dpkg-buildflags --get CXXFLAGS)"
  LDFLAGS=$(dpkg-buildflags --get LDFLAGS)
  export CXXFLAGS LDFLAGS
fi
cmake -S . -B build/deb -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=/usr \
  -DTHC_BUILD_PYTHON=OFF -DTHC_BUILD_TESTS=OFF -DTHC_WITH_DPDK=OFF --log-level=WARNING
cmake --build build/deb --target thc-ps thc-ps-manual
cd build/deb
cpack
ls "$PWD"/thc-ps_*.deb
