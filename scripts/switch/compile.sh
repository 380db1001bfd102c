#!/usr/bin/env bash
# Compile the P4 program for the chip of the job description. Does nothing when the result is newer than the sources.
#
# Usage: scripts/switch/compile.sh JOBS.toml [--dry-run]
# The compiler is $P4C, the SDE's bf-p4c, or p4c on PATH (with Tofino back end).
# shellcheck source=scripts/switch/common.sh
source "$(dirname "$0")/common.sh"

describe_program
readonly source_file=$root/p4/programs/tna/$program.p4
[[ -f $source_file ]] || die "$source_file is not there: switch.program of $jobs names no program of p4/programs/tna"

compiler=${P4C:-}
if [[ -z $compiler ]]; then
  if [[ -n ${SDE_INSTALL:-}${SDE:-} ]]; then compiler=$(sde_install)/bin/bf-p4c; else compiler=$(command -v p4c || true); fi
fi
[[ -n $compiler ]] || die "no P4 compiler: set SDE_INSTALL (bf-p4c), or P4C to a p4c with Tofino back end"

if [[ -f $conf && -z $(find "$root/p4/programs" -name '*.p4' -newer "$conf" -print -quit) ]]; then
  echo "compiled already: $conf"
  exit
fi
run mkdir -p "$compiled"
run "$compiler" --target "$chip" --arch "$arch" "${options[@]}" -o "$compiled" "$source_file"
$dry_run || [[ -f $conf ]] || die "the compiler wrote no $conf; see its messages above"
