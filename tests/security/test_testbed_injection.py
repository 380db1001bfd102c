"""No word of a testbed's description is ever executed, but where it says what workers run: by no shell, on no host."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from testbed_words import BASES, MARKER, PAYLOADS, SOME_PAYLOADS, all_places, base, places, plant

from byteps_thc.errors import ThcError
from thc_lab.testbed.description import Testbed
from thc_lab.testbed.host_scripts import MAKE_FOLDER, SCRIPTS, WRITE_FILE
from thc_lab.testbed.kubernetes import manifests
from thc_lab.testbed.plan import plan
from thc_lab.testbed.process import Plan, SetupStep
from thc_lab.testbed.reading import read
from thc_lab.testbed.slurm import batch_script

DEADLINE_S = 120.0
#: All four take their time, and these two have all that is unlike.
NAMES = ["dpdk_switch", "torchrun", *(pytest.param(name, marks=pytest.mark.slow) for name in ("colocated", "racks"))]
BASH = shutil.which("bash") or "/bin/bash"
#: Programs that stand in for those of hosts. srun runs the command here; sudo, too; bpslaunch has a shell, as BytePS's.
STUBS = {
    "srun": '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n',
    "sudo": '#!/bin/sh\n[ "$1" = -n ] && shift\nexec "$@"\n',
    "thc-ps": "#!/bin/sh\necho thc-ps ready on 10.0.0.10:48865\nexec /bin/sleep 60\n",
    "thc": "#!/bin/sh\necho agent ready on 10.0.0.10:48865\nexec /bin/sleep 60\n",
    "bpslaunch": '#!/bin/sh\n[ "$DMLC_ROLE" = worker ] || exec /bin/sleep 60\nexec sh -c "$*"\n',
    "torchrun": '#!/bin/sh\nwhile [ "$1" != --no-python ]; do shift; done\nshift\nexec "$@"\n',
    "ip": "#!/bin/sh\n",
    "modprobe": "#!/bin/sh\n",
    "dpdk-devbind.py": "#!/bin/sh\n",
    "sleep": "#!/bin/sh\nexec /bin/sleep 0.05\n",
    MARKER: '#!/bin/sh\necho "$0 $*" >>"{folder}/marked"\n',
}
#: What set-up runs as root.
SETUP_PROGRAMS = {"sh", "grep", "test", "modprobe"}
#: Instead of running anything, the functions of a Slurm script print the words that they get, each with a zero byte.
#: Nothing is done yet: set-up does all, and undoes it.
RECORDER = r"""
set +e
on() { printf '%s\0' on "$@"; return 1; }
start() { printf '%s\0' start "$@"; }
await() { :; }
finish() { for name in "${undo[@]}"; do "$name"; done; }
read_variables() { :; }
trap - EXIT
"""
#: Behind it, a script has words of a description.
END_OF_FUNCTIONS = "trap 'exit 143' TERM INT\n"


def accepted(fields: dict[str, Any]) -> Testbed | None:
    """None: the description is refused."""
    try:
        return read(fields)
    except ThcError:
        return None


def steps_of(planned: Plan) -> list[SetupStep]:
    return [step for setup in planned.setups for step in setup.steps]


def commands_of(planned: Plan) -> Iterator[tuple[str, ...]]:
    """All commands of a set-up: those of `check`, of `up` and of `down`."""
    for step in steps_of(planned):
        yield from filter(None, (step.done, step.do, step.undo))


def scripts_of(testbed: Testbed, planned: Plan) -> dict[str, str]:
    """Those of Kubernetes' nodes."""
    items = json.loads(manifests(testbed, planned))["items"]
    [files] = [item["data"] for item in items if item["kind"] == "ConfigMap"]
    return {name: text for name, text in files.items() if name.endswith(".sh")}


def assert_no_script_has_a_word_in_it(planned: Plan) -> None:
    for command in commands_of(planned):
        assert command[0] in SETUP_PROGRAMS
        if command[0] == "sh":
            assert command[1] == "-c"
            assert command[2] in SCRIPTS


def recorded(text: str) -> list[list[str]]:
    """The words that `on` and `start` get when bash reads the script."""
    assert text.count(END_OF_FUNCTIONS) == 1
    text = text.replace(END_OF_FUNCTIONS, END_OF_FUNCTIONS + RECORDER).replace("mkdir -p", ":")
    finished = subprocess.run(
        [BASH, "-c", text],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={"PATH": "/nowhere", "SLURM_JOB_NAME": "job", "SLURM_JOB_ID": "7"},
        timeout=DEADLINE_S,
        check=False,
    )
    assert finished.stderr == b""  # no command that there is not
    calls: list[list[str]] = []
    for word in finished.stdout.decode().split("\0")[:-1]:
        if word in ("on", "start"):
            calls.append([])
        calls[-1].append(word)
    return calls


def expected(planned: Plan) -> Iterator[list[str]]:
    """What recorded() finds: the words of the plan, as they are."""
    for file in planned.files:
        words = [file.path] if file.text is None else [file.path, f"{file.mode:o}"]
        yield ["on", file.host, "sh", "-c", MAKE_FOLDER if file.text is None else WRITE_FILE, "sh", *words]
    steps = [(setup.host, step) for setup in planned.setups for step in setup.steps]
    for host, step in steps:
        if step.done:
            yield ["on", host, *step.done]
        yield ["on", host, "sudo", "-n", *step.do]
    for process in planned.processes:
        folder = [] if process.folder is None else [f"--chdir={process.folder}"]
        variables = [f"{name}={value}" for name, value in process.environment.items()]
        yield ["start", process.name, process.role, process.host, *folder, "env", *variables, *process.argv]
    for host, step in reversed(steps):
        if step.undo:
            yield ["on", host, "sudo", "-n", *step.undo]


def assert_words_arrive(testbed: Testbed, planned: Plan) -> None:
    """Bash makes neither more nor fewer of them, and nothing else."""
    assert recorded(batch_script(testbed, planned)) == list(expected(planned))


def planted(name: str, words: Sequence[str] = PAYLOADS) -> Iterator[tuple[str, Testbed]]:
    """What is accepted of a description with a word where none belongs: the word, and all such places at once."""
    fields = base(name)
    assert accepted(fields) is not None
    for word in words:
        together = fields
        for place, keys in places(fields):
            if accepted(plant(fields, place, keys, word)) is None:
                continue
            changed = plant(together, place, keys, word)
            if place.part != "first" and accepted(changed) is not None:
                together = changed
        testbed = accepted(together)
        assert testbed is not None
        if together != fields:
            yield word, testbed


def test_every_field_of_the_model_is_tried() -> None:
    """A new section, or a new kind of one, has to be in one of the descriptions that are tried."""
    tried = {(place.section, place.field) for name in BASES for place, _ in places(base(name))}
    assert all_places() <= tried


@pytest.mark.parametrize("name", NAMES)
def test_words_that_are_accepted_stay_words(name: str) -> None:
    count = 0
    for _, testbed in planted(name):
        planned = plan(testbed)
        assert_no_script_has_a_word_in_it(planned)
        assert_words_arrive(testbed, planned)
        count += 1
    assert count >= len(PAYLOADS) // 2, "commands may have any words"


WORDS = st.one_of(
    st.text(
        alphabet=st.sampled_from(list(" \t\n\r;|&$(){}[]<>`'\"\\*?~#!%^=:,./-_@+") + list("abhit0é\x1b\x7f")),
        max_size=24,
    ),
    st.sampled_from(PAYLOADS),
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_word_anywhere(data: st.DataObject) -> None:
    fields = base(data.draw(st.sampled_from(BASES)))
    for _ in range(4):
        place, keys = data.draw(st.sampled_from(list(places(fields))))
        changed = plant(fields, place, keys, data.draw(WORDS))
        if accepted(changed) is not None:
            fields = changed
    testbed = read(fields)
    planned = plan(testbed)
    assert_no_script_has_a_word_in_it(planned)
    assert_words_arrive(testbed, planned)
    scripts_of(testbed, planned)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder of stand-ins."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name, text in STUBS.items():
        (folder / name).write_text(text.replace("{folder}", str(tmp_path)), encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder


def masked() -> list[str]:
    """A prefix for commands that see an empty /sys, and a /var/tmp and a /srv of their own."""
    mounts = "; ".join(f"mount -t tmpfs -o mode={mode} none {path}" for path, mode in MOUNTS.items())
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, "--mount", "sh", "-c", f'set -e; {mounts}; exec "$@"', "sh"]


MOUNTS = {"/sys": "0755", "/var/tmp": "1777", "/srv": "0755"}


@pytest.fixture(scope="module")
def mask() -> list[str]:
    prefix = masked()
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no mount namespaces here")
    return prefix


def execute(mask: Sequence[str], programs: Path, command: Sequence[str], text: str = "") -> str:
    """Run it where only the stand-ins could do anything; what it said."""
    work = programs.parent / "work"
    work.mkdir(exist_ok=True)
    environment = {
        "PATH": f"{programs}:/usr/bin:/bin",
        "SLURM_JOB_NAME": "thc-job",
        "SLURM_JOB_ID": "7",
        "HOME": str(programs.parent),
        "THC_TESTBED_ENVIRONMENT": str(programs.parent / "variables"),
    }
    finished = subprocess.run(
        [*mask, *command],
        input=text,
        capture_output=True,
        text=True,
        env=environment,
        cwd=work,
        timeout=DEADLINE_S,
        check=False,
    )
    return finished.stdout + finished.stderr


def write_variables(programs: Path, testbed: Testbed) -> None:
    file = programs.parent / "variables"
    file.write_text("".join(f"{name}={value}\n" for name, value in testbed.training.environment.items()))
    file.chmod(0o600)


def assert_unmarked(programs: Path, what: str) -> None:
    marked = programs.parent / "marked"
    assert not marked.exists(), f"{what}: {marked.read_text()}"


def test_the_stand_ins_see_what_a_shell_runs(programs: Path, mask: list[str]) -> None:
    execute(mask, programs, ["sh", "-c", f"true;{MARKER}"])
    assert (programs.parent / "marked").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", BASES)
def test_scripts_for_slurm_run_no_word(name: str, programs: Path, mask: list[str]) -> None:
    ran = 0
    for word, testbed in planted(name, SOME_PAYLOADS):
        write_variables(programs, testbed)
        said = execute(mask, programs, ["bash"], batch_script(testbed, plan(testbed)))
        assert_unmarked(programs, f"{word!r}: {said}")
        ran += "logs in" not in said
    assert ran, "none of them came to its end"


@pytest.mark.parametrize("name", NAMES)
def test_scripts_for_kubernetes_run_no_word(name: str, programs: Path, mask: list[str]) -> None:
    scripts = [
        script for _, testbed in planted(name, SOME_PAYLOADS) for script in scripts_of(testbed, plan(testbed)).values()
    ]
    said = execute(mask, programs, ["sh"], "\n".join(f"sh -c {shlex.quote(script)}" for script in scripts))
    assert_unmarked(programs, said)


@pytest.mark.parametrize("name", NAMES)
def test_check_up_and_down_run_no_word(name: str, programs: Path, mask: list[str]) -> None:
    """Steps as they are run by ssh, whose server gives the line to a shell."""
    lines = [
        shlex.join(command) for _, testbed in planted(name, SOME_PAYLOADS) for command in commands_of(plan(testbed))
    ]
    said = execute(mask, programs, ["sh"], "\n".join(f"sh -c {shlex.quote(line)}" for line in lines))
    assert_unmarked(programs, said)
