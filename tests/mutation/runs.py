"""Run the tests that have to find a fault, and name the first that failed."""

import json
import os
import re
import shlex
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import scratch

#: More than pytest's own limit for a test, so that a test that has a deadline ends by it.
LIMIT_S = 300
_GTEST_RUN = re.compile(r"^\[ RUN      \] (\S+)", re.MULTILINE)
_GTEST_FAILED = re.compile(r"^\[  FAILED  \] (\S+?)(?:,| \()", re.MULTILINE)
_GTEST_PASSED = re.compile(r"^\[       OK \] ", re.MULTILINE)
_PYTEST_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/[^\s:]+)::(\S+)", re.MULTILINE)
_PYTEST_PASSED = re.compile(r"\b[1-9]\d* passed")


@dataclass(frozen=True)
class Run:
    """The result of tests: `file` of the first that failed, or None; `why_not`: the reason why they did not run."""

    file: str | None
    test: str
    by_deadline: bool
    why_not: str | None
    output: str

    @property
    def has_passed(self) -> bool:
        return self.file is None and self.why_not is None


def is_program(test: str) -> bool:
    """Whether these are tests in C++."""
    return "tests/" not in test


def run(test: str) -> Run:
    """Run an entry of Fault.tests in the scratch tree, up to the first failure."""
    return _run_program(test) if is_program(test) else _run_pytest(test)


def _run_pytest(test: str) -> Run:
    options = ["-p", "no:cacheprovider", "-p", "no:benchmark", "-x", "-q", "-rfE", "--tb=short", "-m", "not slow"]
    status, output = _call([str(scratch.PYTHON), "-m", "pytest", *options, *shlex.split(test)])
    failed = _PYTEST_FAILED.search(output) if status == 1 else None
    if failed:
        return Run(failed[1], failed[2], "from pytest-timeout" in output, None, output)
    has_passed = status == 0 and _PYTEST_PASSED.search(output) is not None
    return Run(None, "", False, None if has_passed else _why_not(status), output)


def _run_program(test: str) -> Run:
    name, _, pattern = test.partition(" ")
    program = str(scratch.BUILD / "tests" / name)
    options = ["--gtest_fail_fast", *([f"--gtest_filter={pattern}"] if pattern else [])]
    status, output = _call([program, *options])
    if status is None or (status == 0 and not _GTEST_PASSED.search(output)):
        return Run(None, "", False, _why_not(status), output)
    if status == 0:
        return Run(None, "", False, None, output)
    failed = _GTEST_FAILED.search(output)
    started = _GTEST_RUN.findall(output)  # the last one, if the program crashed
    if not failed and not started:
        return Run(None, "", False, _why_not(status), output)
    case = failed[1] if failed else started[-1]
    return Run(_file_of(program, case), case, False, None, output)


def _file_of(program: str, case: str) -> str:
    """Source of a C++ test."""
    with tempfile.TemporaryDirectory(prefix="thc-mutation-") as folder:
        listed = Path(folder) / "tests.json"
        _call([program, "--gtest_list_tests", f"--gtest_output=json:{listed}"])
        suites = json.loads(listed.read_text(encoding="utf-8"))["testsuites"]
    files = {f"{suite['name']}.{test['name']}": test["file"] for suite in suites for test in suite["testsuite"]}
    file: str = files[case]
    return file[file.index("tests/") :] if not Path(file).is_absolute() else str(Path(file).relative_to(scratch.ROOT))


def _why_not(status: int | None) -> str:
    if status is None:
        return f"no end within {LIMIT_S} s, and no deadline of a test's own"
    return "no test passed: all were skipped here" if status == 0 else f"the tests did not run (status {status})"


def _call(command: list[str]) -> tuple[int | None, str]:
    """Return status (None: it ran into the limit) and output; no process keeps running."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command,
            cwd=scratch.ROOT,
            env=scratch.environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status: int | None = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if process.poll() is None or status is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        return status, output.read()
