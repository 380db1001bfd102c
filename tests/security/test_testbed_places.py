"""Files of a testbed on hosts: nobody gets root to write elsewhere, and `down` removes what was made and no more."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from testbed_plans import DESCRIPTIONS

from byteps_thc.errors import ConfigurationError
from thc_lab.testbed.host_scripts import MAKE_FOLDER, SCRIPTS, WRITE_FILE, shell
from thc_lab.testbed.keeper import files
from thc_lab.testbed.keeper.places import read_own
from thc_lab.testbed.reading import load

#: How long a race is run: the first code lost it within some ten rounds.
RACE_S = 3.0
PRECIOUS = "root's own"


def a_folder(path: Path) -> dict[str, Any]:
    return {"host": "host", "path": str(path), "text": None, "mode": 0o700}


def a_file(path: Path) -> dict[str, Any]:
    return {"host": "host", "path": str(path), "text": "new", "mode": 0o600}


def by_keeper(records: Path, folder: Path) -> None:
    """What `up` does over ssh, and in namespaces."""
    files.put(records, [a_folder(folder), a_file(folder / "jobs.json")])


def by_scripts(_: Path, folder: Path) -> None:
    """What Slurm's script and those for Kubernetes' nodes do."""
    for command, text in (
        (shell(MAKE_FOLDER, str(folder)), ""),
        (shell(WRITE_FILE, str(folder / "jobs.json"), "600"), "new"),
    ):
        finished = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
        if finished.returncode != 0:
            raise PermissionError(finished.stderr)


MAKERS = {"keeper": by_keeper, "scripts": by_scripts}
Maker = Callable[[Path, Path], None]


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Maker:
    return MAKERS[request.param]


@pytest.fixture
def nobody() -> pwd.struct_passwd:
    if os.geteuid() != 0:
        pytest.skip("another user is played by root only")
    return pwd.getpwnam("nobody")


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder as /var/tmp, to which all have a way."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="thc-test-"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file of root's that nobody else can even see."""
    folder = tmp_path / "precious"
    folder.mkdir()
    (folder / "jobs.json").write_text(PRECIOUS)
    return folder


def as_user(user: pwd.struct_passwd, work: Callable[[], None]) -> int:
    """Run it in a process of that user's; its process id."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
            os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
            work()
        finally:
            os._exit(0)
    return child


def wait_for(user: pwd.struct_passwd, work: Callable[[], None]) -> None:
    os.waitpid(as_user(user, work), 0)


def lay_trap(folder: Path, precious: Path) -> None:
    """In a loop: the folder is one of this user's, with a link in it, and then it is a link itself."""

    def attempt() -> None:
        folder.mkdir(mode=0o777)
        (folder / "jobs.json").symlink_to(precious / "jobs.json")
        time.sleep(0.0005)
        (folder / "jobs.json").unlink()
        folder.rmdir()
        folder.symlink_to(precious)
        time.sleep(0.0005)
        folder.unlink()

    while True:
        try:
            attempt()
        except OSError:  # the other was faster
            for undo in (lambda: (folder / "jobs.json").unlink(), folder.rmdir, folder.unlink):
                try:
                    undo()
                except OSError:
                    continue


def is_root_s(folder: Path) -> bool:
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == 0 and stat.S_IMODE(status.st_mode) == 0o700


def test_nobody_wins_a_race_against_root(
    make: Maker, nobody: pwd.struct_passwd, shared: Path, precious: Path, tmp_path: Path
) -> None:
    folder = shared / "thc-race"
    child = as_user(nobody, lambda: lay_trap(folder, precious))
    refused = won = 0
    try:
        deadline = time.monotonic() + RACE_S
        while time.monotonic() < deadline:
            try:
                make(tmp_path / "records", folder)
            except OSError:
                refused += 1
            else:
                won += 1
                assert is_root_s(folder)
                assert (folder / "jobs.json").read_text() == "new"
                shutil.rmtree(folder)
            assert (precious / "jobs.json").read_text() == PRECIOUS
            assert [path.name for path in precious.iterdir()] == ["jobs.json"]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert refused, "the race was not run"


def traps(shared: Path, precious: Path) -> dict[str, Callable[[], None]]:
    """What another user has put there before."""
    folder = shared / "thc-trap"

    def a_folder_of_his() -> None:
        folder.mkdir(mode=0o700)

    def a_folder_for_all() -> None:
        folder.mkdir()
        folder.chmod(0o777)

    def a_link_to_a_folder() -> None:
        folder.symlink_to(precious)

    def a_link_to_nothing() -> None:
        folder.symlink_to(precious.parent / "nothing")

    def a_file_there() -> None:
        folder.write_text("")

    return {
        work.__name__: work
        for work in (a_folder_of_his, a_folder_for_all, a_link_to_a_folder, a_link_to_nothing, a_file_there)
    }


@pytest.mark.parametrize("trap", traps(Path(), Path()))
@pytest.mark.parametrize("deeper", [False, True], ids=["folder", "on_the_way"])
def test_what_another_user_has_laid_is_refused(
    make: Maker, trap: str, deeper: bool, nobody: pwd.struct_passwd, shared: Path, precious: Path, tmp_path: Path
) -> None:
    folder = shared / "thc-trap"
    wait_for(nobody, traps(shared, precious)[trap])
    before = sorted(shared.rglob("*"))
    with pytest.raises(OSError, match=r"remove it, or name another|No such file|can't cd|cannot|Not a directory"):
        make(tmp_path / "records", folder / "run" if deeper else folder)
    assert sorted(shared.rglob("*")) == before
    assert [path.name for path in precious.iterdir()] == ["jobs.json"]
    assert (precious / "jobs.json").read_text() == PRECIOUS
    assert not (precious.parent / "nothing").exists()


def test_a_link_of_root_s_on_the_way_is_followed(make: Maker, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to("disk")
    make(tmp_path / "records", tmp_path / "run/thc")
    assert (tmp_path / "disk/thc/jobs.json").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "disk/thc").stat().st_mode) == 0o700
    make(tmp_path / "records", tmp_path / "run/thc")  # what is there and ours may stay


def test_links_of_root_s_are_walked_part_by_part(make: Maker, tmp_path: Path) -> None:
    """Absolute ones, those with "..", "." and empty parts, and links in what a link leads through."""
    (tmp_path / "disk/deep").mkdir(parents=True)
    (tmp_path / "first").symlink_to("./disk//deep/../second/")
    (tmp_path / "disk/second").symlink_to(tmp_path / "disk/deep")
    make(tmp_path / "records", tmp_path / "first/run")
    assert (tmp_path / "disk/deep/run/jobs.json").read_text() == "new"


@pytest.mark.parametrize("absolute", [True, False], ids=["absolute", "relative"])
@pytest.mark.parametrize("there", [True, False], ids=["there", "missing"])
def test_a_link_of_root_s_through_another_user_s_folder_is_refused(
    make: Maker, absolute: bool, there: bool, nobody: pwd.struct_passwd, shared: Path, precious: Path, tmp_path: Path
) -> None:
    """He may put anything in the place of `in`, also what is root's: here a link to a folder of root's."""
    evil = shared / "evil"
    wait_for(nobody, lambda: evil.mkdir(mode=0o755))
    if there:
        wait_for(nobody, lambda: (evil / "in").symlink_to(precious))
    (shared / "link").symlink_to(evil / "in" if absolute else "evil/in")
    with pytest.raises(OSError, match=r"evil is .*another user's|evil is there already, and not this user's"):
        make(tmp_path / "records", shared / "link/run")
    assert (evil / "in").is_symlink() == there
    assert [path.name for path in precious.iterdir()] == ["jobs.json"]


def test_links_in_a_circle_come_to_an_end(make: Maker, tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    with pytest.raises(OSError, match="too many links"):
        make(tmp_path / "records", tmp_path / "one/run")


def test_a_folder_of_ours_that_others_may_enter_is_refused(make: Maker, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o755)
    with pytest.raises(OSError, match=r"there already.*mode"):
        make(tmp_path / "records", tmp_path / "run")


def test_a_folder_that_all_may_write_to_is_no_way(make: Maker, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(OSError, match="may be written by all"):
        make(tmp_path / "records", tmp_path / "open/run")


def test_another_name_of_a_file_is_not_written(tmp_path: Path) -> None:
    """A hard link, which another user may make where fs.protected_hardlinks is 0."""
    (tmp_path / "precious").write_text(PRECIOUS)
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    (run / "jobs.json").hardlink_to(tmp_path / "precious")
    with pytest.raises(PermissionError, match="not this user's"):
        files.put(tmp_path / "records", [a_file(run / "jobs.json")])
    assert (tmp_path / "precious").read_text() == PRECIOUS


def test_results_are_read_from_a_file_of_ours(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text(PRECIOUS)
    (tmp_path / "results.json").symlink_to(tmp_path / "precious")
    with pytest.raises(PermissionError, match="not this user's"):
        read_own(str(tmp_path / "results.json"))
    assert read_own(str(tmp_path / "precious")) == PRECIOUS


def test_no_script_makes_a_folder_on_its_own() -> None:
    assert [script for script in SCRIPTS if "mkdir" in script] == [MAKE_FOLDER]


# What `down` removes.


@pytest.mark.parametrize("path", ["{}/run/../precious", "{}/run/./precious", "{}//precious", "run", "{}/precious/"])
def test_a_path_that_leads_elsewhere_is_refused(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "precious").mkdir(mode=0o700)
    (tmp_path / "precious/data").write_text(PRECIOUS)
    records = tmp_path / "records"
    with pytest.raises(PermissionError, match="absolute path without"):
        files.put(records, [{"path": path.format(tmp_path), "text": None, "mode": 0o700}])
    files.remove_all(records)
    assert (tmp_path / "precious/data").read_text() == PRECIOUS
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("folder", ["/x/run/../precious", "/x/./run", "/..", "/x/..", "/x//run", "/x/", "/"])
@pytest.mark.parametrize("key", ["folder", "bin", "key_file"])
def test_a_description_with_such_a_path_is_refused(key: str, folder: str, tmp_path: Path) -> None:
    text = (DESCRIPTIONS / "torchrun.toml").read_text(encoding="utf-8")
    line = {"folder": 'reach = "ssh"', "bin": 'reach = "ssh"', "key_file": "[job]"}[key]
    text = text.replace('key_file = "/etc/thc/job.key"', "").replace(line, f'{line}\n{key} = "{folder}"')
    file = tmp_path / "testbed.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=key):
        load(file)


@pytest.mark.parametrize("what", ["folder", "file", "link"])
def test_what_was_put_in_the_place_of_what_was_made_stays(what: str, tmp_path: Path) -> None:
    """Also where it has the same inode: most file systems give a number that is free to the next one."""
    records, run, kept = tmp_path / "records", tmp_path / "new/run", tmp_path / "kept"
    kept.mkdir()
    (kept / "data").write_text(PRECIOUS)
    files.put(records, [a_folder(run), a_file(tmp_path / "new/jobs.json")])
    run.rmdir()
    if what == "folder":
        run.mkdir()
        (run / "data").write_text(PRECIOUS)
    elif what == "file":
        run.write_text(PRECIOUS)
    else:
        run.symlink_to(kept)
    assert files.remove_all(records) == [str(run)]
    assert (kept / "data").read_text() == PRECIOUS
    assert run.is_symlink() or (run if run.is_file() else run / "data").read_text() == PRECIOUS
    assert not (tmp_path / "new/jobs.json").exists()


def test_a_link_in_a_run_folder_is_removed_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/data").write_text(PRECIOUS)
    files.put(tmp_path / "records", [a_folder(tmp_path / "run")])
    (tmp_path / "run/link").symlink_to(tmp_path / "precious")
    assert files.remove_all(tmp_path / "records") == []
    assert not (tmp_path / "run").exists()
    assert (tmp_path / "precious/data").read_text() == PRECIOUS


def test_a_way_that_became_a_link_leads_nowhere(tmp_path: Path) -> None:
    """Folders on the way are not followed to where a link leads that somebody has put there since."""
    files.put(tmp_path / "records", [a_folder(tmp_path / "new/run")])
    (tmp_path / "new").rename(tmp_path / "old")
    (tmp_path / "other/run").mkdir(parents=True)
    (tmp_path / "other/run/data").write_text(PRECIOUS)
    (tmp_path / "new").symlink_to(tmp_path / "other")
    assert files.remove_all(tmp_path / "records") == [str(tmp_path / "new/run")]
    assert (tmp_path / "other/run/data").read_text() == PRECIOUS
    assert (tmp_path / "old/run").exists()


def test_what_another_user_was_faster_to_make_stays(
    nobody: pwd.struct_passwd, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty folder, made in the instant before the keeper makes it."""
    folder, mkdir = shared / "thc-late", os.mkdir

    def late(name: str, mode: int, *, dir_fd: int) -> None:
        wait_for(nobody, folder.mkdir)
        mkdir(name, mode, dir_fd=dir_fd)

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "mkdir", lambda *words, **more: late(*words, **more) if more else mkdir(*words))
        with pytest.raises(PermissionError, match=r"thc-late is there already, and not this user's: remove it"):
            files.put(tmp_path / "records", [a_folder(folder)])
    assert files.remove_all(tmp_path / "records") == [str(folder)]
    assert folder.lstat().st_uid == nobody.pw_uid


@pytest.mark.parametrize("instant", ["new", "run", "jobs.json"])
@pytest.mark.parametrize("first", ["first", "second"])
def test_what_another_keeper_of_the_testbed_was_faster_to_make_is_shared(
    instant: str, first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts may be one machine; theirs makes all, or the rest, in the instant before ours makes a folder or the file.

    Both are content, the file is whole, and nothing is left of what they made, whoever removes his part first.
    """
    run = tmp_path / "new/run"
    of = {name: tmp_path / "records" / name for name in ("first", "second")}
    wanted = [a_folder(run), a_file(run / "jobs.json")]

    def put(name: str) -> None:
        own = run / name
        files.put(of[name], [*wanted, a_folder(own), a_file(own / "data")])

    def late(call: Callable[..., Any]) -> Callable[..., Any]:
        def after_the_other(name: str, *words: Any, **more: Any) -> Any:
            if name == instant and "dir_fd" in more and not of["second"].exists():
                put("second")
            return call(name, *words, **more)

        return after_the_other

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "mkdir", late(os.mkdir))
        patched.setattr(files.os, "open", late(os.open))
        put("first")
    assert of["second"].exists(), "the other was not there"
    assert (run / "jobs.json").read_text() == "new"
    assert sorted(path.name for path in run.iterdir()) == ["first", "jobs.json", "second"]
    assert stat.S_IMODE(run.stat().st_mode) == 0o700
    for name in sorted(of, reverse=first == "second"):
        assert files.remove_all(of[name]) == []
    assert not (tmp_path / "new").exists()


def test_many_keepers_make_a_folder_at_once(tmp_path: Path) -> None:
    """As those of all hosts of a testbed in namespaces do."""
    keepers, rounds = 5, 8
    run = tmp_path / "new/deeper/run"
    for _ in range(rounds):
        reader, writer = os.pipe()
        children = [fork_keeper(tmp_path / f"records{n}", run, reader, writer) for n in range(keepers)]
        os.close(writer)  # they begin
        os.close(reader)
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * keepers
        assert sorted(path.name for path in run.iterdir()) == sorted(["jobs.json", *map(str, children)])
        for n in range(keepers):
            assert files.remove_all(tmp_path / f"records{n}") == []
        assert not (tmp_path / "new").exists()


def fork_keeper(records: Path, run: Path, reader: int, writer: int) -> int:
    """A process that puts files when the writer is closed; its exit status is 0 when it was let."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.close(writer)
        os.read(reader, 1)
        files.put(records, [a_folder(run), a_file(run / "jobs.json"), a_folder(run / str(os.getpid()))])
        status = 0
    finally:
        os._exit(status)


@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_a_folder_for_others_is_refused_however_late_it_was_made(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, mkdir = tmp_path / "run", os.mkdir

    def late(name: str, own_mode: int, *, dir_fd: int) -> None:
        run.mkdir()
        run.chmod(mode)
        mkdir(name, own_mode, dir_fd=dir_fd)

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "mkdir", lambda *words, **more: late(*words, **more) if more else mkdir(*words))
        with pytest.raises(PermissionError, match=f"there already with mode {mode:o}"):
            files.put(tmp_path / "records", [a_folder(run)])


def test_a_run_folder_that_was_made_again_is_the_testbed_s(tmp_path: Path) -> None:
    for _ in range(2):
        files.put(tmp_path / "records", [a_folder(tmp_path / "run"), a_file(tmp_path / "run/jobs.json")])
        shutil.rmtree(tmp_path / "run")
    files.put(tmp_path / "records", [a_folder(tmp_path / "run")])
    assert files.remove_all(tmp_path / "records") == []
    assert not (tmp_path / "run").exists()


def test_a_crash_between_making_and_remembering_removes_nothing_of_others(tmp_path: Path) -> None:
    """The list then has a path, and not what was made there."""
    records = tmp_path / "records"
    records.mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run/data").write_text(PRECIOUS)
    (tmp_path / "empty").mkdir()
    lines = [
        f'["{tmp_path}/{name}", true{rest}]' for name, rest in (("run", ", 0, 0"), ("empty", ", 0, 0"), ("run", ""))
    ]
    (records / "made-files.list").write_text("\n".join(lines) + "\n")
    assert files.remove_all(records) == [f"{tmp_path}/run"]
    assert (tmp_path / "run/data").read_text() == PRECIOUS
    assert not (tmp_path / "empty").exists()


def test_scripts_are_read_by_every_shell(tmp_path: Path) -> None:
    shells = [path for name in ("dash", "bash", "busybox") if (path := shutil.which(name)) is not None]
    for path in shells:
        command = [path, "sh"] if path.endswith("busybox") else [path]
        folder = tmp_path / Path(path).name / "run"
        subprocess.run([*command, "-c", MAKE_FOLDER, "sh", str(folder)], check=True, timeout=60)
        write = [*command, "-c", WRITE_FILE, "sh", str(folder / "a file"), "600"]
        subprocess.run(write, input="new", text=True, check=True, timeout=60)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "a file").stat().st_mode) == 0o600
        assert (folder / "a file").read_text() == "new"
    assert shells
