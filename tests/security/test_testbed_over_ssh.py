"""`check`, `up`, `run`, `logs` and `down` over ssh of a description full of what shells would run: words stay words."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ssh_servers import ALIAS, asyncssh_server, make_home, make_keys
from testbed_runs import DEADLINE_S
from testbed_words import MARKER, PAYLOADS

from thc_lab.testbed import operations
from thc_lab.testbed.check import check
from thc_lab.testbed.plan import plan
from thc_lab.testbed.reading import read

pytest.importorskip("asyncssh", reason="asyncssh is not installed: pip install 'asyncssh>=2.18'")

DESCRIPTION = """
reach = "ssh"
[[hosts]]
name = "gpu0"
management_ip = "127.0.0.1"
workers = 1
nics = [{ ip = "127.0.0.2" }]
[[hosts]]
name = "ps"
nics = [{ ip = "127.0.0.3" }]
[aggregator]
kind = "thc-ps"
hosts = ["ps"]
[transport]
kind = "udp"
[training]
launcher = "torchrun"
"""
#: The worker, which says what it got.
SAY = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['WORDS'], os.getcwd()]))"
PROGRAMS = {
    "thc-ps": '#!/bin/sh\nprintf "%s\\n" "$@" >"{folder}/words"\necho thc-ps ready on 127.0.0.3\nexec sleep 600\n',
    "torchrun": '#!/bin/sh\nwhile [ "$1" != --no-python ]; do shift; done\nshift\nexec "$@"\n',
    MARKER: '#!/bin/sh\necho "$0 $*" >>"{folder}/marked"\n',
}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the hosts' programs, with a server that lets this process in as ALIAS, and has it on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    paths = os.pathsep.join(part for part in sys.path if part)
    python = (
        f"#!/bin/sh\nexport PYTHONPATH='{paths}' XDG_STATE_HOME='{tmp_path}/remote'\nexec {sys.executable} \"$@\"\n"
    )
    for name, text in (PROGRAMS | {"python3": python}).items():
        (folder / name).write_text(text.replace("{folder}", str(tmp_path)))
        (folder / name).chmod(0o755)
    make_keys(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    with asyncssh_server(tmp_path) as port:
        monkeypatch.setenv("HOME", str(make_home(tmp_path, port)))
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        yield folder


def describe(tmp_path: Path, programs: Path) -> tuple[dict[str, Any], list[str], list[str]]:
    """The description, the words of its command, and those of thc-ps's options."""
    fields = tomllib.loads(DESCRIPTION)
    options = [word for word in PAYLOADS if word.isprintable() and word]
    where = tmp_path / f"$({MARKER});{MARKER};`{MARKER}`'\""
    where.mkdir()
    fields |= {"name": f"words{os.getpid()}", "bin": str(programs), "folder": f"/var/tmp/thc-words{os.getpid()}"}
    for host in fields["hosts"]:
        host["ssh"] = ALIAS
    fields["aggregator"]["options"] = options
    fields["training"] |= {
        "command": ["python3", "-c", SAY, *PAYLOADS],
        "folder": str(where),
        "environment": {"WORDS": " ".join(options)},
    }
    return fields, list(PAYLOADS), options


@pytest.mark.slow
def test_words_stay_words(tmp_path: Path, programs: Path) -> None:
    fields, words, options = describe(tmp_path, programs)
    testbed = read(fields)
    planned = plan(testbed)
    lines: list[str] = []
    try:
        found = asyncio.run(check(planned))
        assert not any(line.what in ("ssh", "keeper", "programs") and line.verdict == "problem" for line in found), (
            found
        )
        private = testbed.training.environment
        work = operations.run(planned, lambda _: None, lambda _, line: lines.append(line), DEADLINE_S, private)
        asyncio.run(work)
        [line] = lines
        assert json.loads(line) == [words, " ".join(options), testbed.training.folder]
        assert (tmp_path / "words").read_text().splitlines()[-len(options) :] == options
    finally:
        asyncio.run(operations.down(planned.name, lambda _: None))
    assert not (tmp_path / "marked").exists()
    assert not Path(testbed.run_folder).exists()
