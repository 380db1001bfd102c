"""A plan as a script for sbatch: one allocation of all hosts, one srun for each process."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from byteps_thc.errors import ConfigurationError
from thc_lab.testbed.description import Testbed
from thc_lab.testbed.host_scripts import MAKE_FOLDER, WRITE_FILE, comment
from thc_lab.testbed.process import Plan, PlannedFile, PlannedProcess, SetupStep
from thc_lab.testbed.sections import HostDescription

_FUNCTIONS = r"""
# shellcheck disable=SC2016 # what is in single quotes is for the shells of hosts
set -euo pipefail
logs="$PWD/$SLURM_JOB_NAME-$SLURM_JOB_ID"
mkdir -p "$logs"
declare -A pids=() roles=()
undo=() step=() variables=()
# What was set where this was submitted must not reach the processes.
for name in "${!DMLC_@}" "${!BYTEPS_@}" "${!PS_@}" "${!THC_@}"; do
  [[ $name == THC_TESTBED_ENVIRONMENT ]] || unset "$name"
done

fail() {
  echo "$SLURM_JOB_NAME: $1; logs in $logs" >&2
  exit 1
}

step_on() { # HOST: what runs a command there, in the array `step`
  step=(srun --nodes=1 --ntasks=1 --nodelist="$1" @GROUP@--overlap --cpu-bind=none --unbuffered)
}

on() { # HOST COMMAND...
  step_on "$1"
  shift
  "${step[@]}" "$@"
}

start() { # NAME ROLE HOST COMMAND...: in the background, with its output in a file
  local name=$1 role=$2
  roles[$name]=$role
  step_on "$3"
  shift 3
  {
    if [[ $role == worker && ${#variables[@]} != 0 ]]; then
      export "${variables[@]}"
      step+=(--export=ALL) # also where sbatch was told otherwise
    fi
    exec "${step[@]}" "$@" # srun itself, so that ending it ends the step
  } >"$logs/$name.log" 2>&1 </dev/null &
  pids[$name]=$!
}

read_variables() { # NAME...: values of the workers' variables, from a file that is this user's alone
  local file=${THC_TESTBED_ENVIRONMENT:-$PWD/$SLURM_JOB_NAME.env} line name
  exec 3<"$file" || fail "the workers' variables are not in $file (thc testbed plan --environment-file)"
  [[ $(stat -L -c %u:%a /dev/fd/3) == "$EUID:600" ]] || fail "$file is another user's, or not of mode 600"
  while IFS= read -r line <&3 || [[ -n $line ]]; do
    for name in "$@"; do
      [[ $line != "$name="* ]] || variables+=("$line")
    done
  done
  exec 3<&-
  ((${#variables[@]} == $#)) || fail "$file does not have one line for each of: $*"
}

await() { # NAME SECONDS PATTERN: until its output has it
  local deadline=$((SECONDS + $2))
  until grep -Eq -- "$3" "$logs/$1.log"; do
    kill -0 "${pids[$1]}" 2>/dev/null || fail "$1 ended before it was ready"
    ((SECONDS < deadline)) || fail "$1 was not ready after $2 s"
    sleep 0.5
  done
}

finish() { # until all workers have ended well; the first that fails ends the run
  local workers=0 ended name status
  for name in "${!roles[@]}"; do [[ ${roles[$name]} != worker ]] || workers=$((workers + 1)); done
  while ((workers > 0)); do
    status=0
    wait -n -p ended "${pids[@]}" || status=$?
    for name in "${!pids[@]}"; do
      [[ ${pids[$name]} == "$ended" ]] || continue
      unset "pids[$name]"
      ((status == 0)) || fail "$name ended with exit code $status"
      case ${roles[$name]} in
        worker) workers=$((workers - 1)) ;;
        scheduler | server) ;; # BytePS's end with the workers
        *) fail "$name ended before the workers" ;;
      esac
    done
  done
}

clean_up() {
  local status=$?
  trap - EXIT
  trap '' TERM INT # only once
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait
  local name
  for name in "${undo[@]}"; do "$name" || echo "$SLURM_JOB_NAME: $name failed; it is in the script" >&2; done
  exit "$status"
}
trap clean_up EXIT
# Slurm's signal before the end of the time, and scancel's: early enough to undo the set-up.
trap 'exit 143' TERM INT
""".strip()


#: From the signal to the end of a job: for ending processes and undoing the set-up.
_UNDO_TIME_S = 120


def batch_script(testbed: Testbed, plan: Plan) -> str:
    """The script. Nodes are called as the description's hosts. ConfigurationError for namespaces."""
    if testbed.reach == "namespaces":
        raise ConfigurationError(
            'namespaces are on one host: Slurm needs reach = "ssh" and the names of nodes as hosts'
        )
    groups = _groups(testbed.hosts)
    functions = _FUNCTIONS.replace("@GROUP@", '--het-group="${group[$1]}" ' if len(groups) > 1 else "")
    lines = ["#!/usr/bin/env bash", *_directives(testbed, groups), "# Written by `thc testbed plan --format slurm`."]
    lines += functions.splitlines()
    if len(groups) > 1:
        members = (f"[{shlex.quote(host.name)}]={number}" for number, hosts in enumerate(groups) for host in hosts)
        lines += ["", f"declare -A group=({' '.join(members)})"]
    if names := list(dict.fromkeys(name for process in plan.processes for name in process.private)):
        lines += ["", "# Their values are in no script.", f"read_variables {shlex.join(names)}"]
    lines += ["unset THC_TESTBED_ENVIRONMENT"]
    lines += ["", "# Files.", f"make_folder={shlex.quote(MAKE_FOLDER)}"]
    if any(file.text is not None for file in plan.files):
        lines.append(f"write_file={shlex.quote(WRITE_FILE)}")
    lines += [line for file in plan.files for line in _file(file)]
    steps = [(setup.host, step) for setup in plan.setups for step in setup.steps]
    if steps:
        lines += ["", "# Set-up of hosts; sudo must not ask for a password."]
        lines += [line for number, (host, step) in enumerate(steps) for line in _setup(number, host, step)]
    lines += ["", "# Processes."]
    ready: set[str] = set()
    for process in plan.processes:
        lines += _process(plan, process, ready)
    return "\n".join([*lines, "", "finish"]) + "\n"


def _groups(hosts: tuple[HostDescription, ...]) -> list[list[HostDescription]]:
    """Hosts with equally many GPUs: a component of a heterogeneous job has as many on each node."""
    counts = list(dict.fromkeys(host.gpus for host in hosts))
    return [[host for host in hosts if host.gpus == count] for count in counts]


def _directives(testbed: Testbed, groups: list[list[HostDescription]]) -> Iterator[str]:
    slurm = testbed.slurm
    yield f"#SBATCH --job-name=thc-{testbed.name}"
    yield f"#SBATCH --time={slurm.time}"
    # To this script alone, in time: when Slurm ends a job it starts no more steps, and the set-up could not be undone.
    yield f"#SBATCH --signal=B:TERM@{_UNDO_TIME_S}"
    for number, hosts in enumerate(groups):
        if number:
            yield "#SBATCH hetjob"
        if slurm.partition is not None:
            yield f"#SBATCH --partition={slurm.partition}"
        if slurm.account is not None:
            yield f"#SBATCH --account={slurm.account}"
        yield f"#SBATCH --nodes={len(hosts)}"
        yield f"#SBATCH --nodelist={','.join(host.name for host in hosts)}"
        yield "#SBATCH --exclusive"
        if hosts[0].gpus:
            yield f"#SBATCH --gpus-per-node={hosts[0].gpus}"


def _file(file: PlannedFile) -> Iterator[str]:
    host, path = shlex.quote(file.host), shlex.quote(file.path)
    if file.text is None:
        yield f'on {host} sh -c "$make_folder" sh {path}'
        return
    lines = file.text.removesuffix("\n").split("\n")
    end = "END_OF_FILE"
    while end in lines:
        end += "_"
    yield f"on {host} sh -c \"$write_file\" sh {path} {file.mode:o} <<'{end}'"
    yield from lines
    yield end


def _setup(number: int, host: str, step: SetupStep) -> Iterator[str]:
    on_host = f"on {shlex.quote(host)}"
    yield comment(f"{host}: {step.what}")
    indent = ""
    if step.undo:
        yield f"undo_{number}() {{ {on_host} sudo -n {shlex.join(step.undo)}; }}"
    if step.done:
        yield f"if ! {on_host} {shlex.join(step.done)}; then"
        indent = "  "
    if step.undo:
        yield f'{indent}undo=(undo_{number} "${{undo[@]}}")'
    yield f"{indent}{on_host} sudo -n {shlex.join(step.do)}"
    if step.done:
        yield "fi"


def _process(plan: Plan, process: PlannedProcess, ready: set[str]) -> Iterator[str]:
    for name in process.after:
        before = plan.process(name)
        if before.ready is not None and name not in ready:
            ready.add(name)
            yield f"await {shlex.quote(name)} {before.ready_timeout_s:.0f} {shlex.quote(before.ready)}"
    folder = [f"--chdir={process.folder}"] if process.folder is not None else []
    variables = [f"{name}={value}" for name, value in process.environment.items()]
    yield f"start {shlex.join((process.name, process.role, process.host))} \\"
    words = [*folder, "env", *variables, *process.argv]
    yield "  " + " \\\n  ".join(shlex.quote(word) for word in words)
