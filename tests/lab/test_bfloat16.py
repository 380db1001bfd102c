"""Virtual machines that show AMX and do not let it run: tests and demos do without it."""

import os
from pathlib import Path

import pytest

from thc_lab import bfloat16

#: torch on a virtual machine that shows AMX and does not let it run, unless oneDNN keeps away from it.
CRASHING_TORCH = """
import os, signal
class nn:
    class Linear:
        def __init__(self, *sizes, device): pass
        def bfloat16(self): return self
        def __call__(self, batch):
            if os.environ.get("ONEDNN_MAX_CPU_ISA") != "AVX512_CORE_BF16":
                os.kill(os.getpid(), signal.SIGILL)
class ones:
    def __init__(self, *sizes, device): pass
    def bfloat16(self): return self
"""


@pytest.fixture
def amx_that_crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(CRASHING_TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr(bfloat16, "shows_amx", lambda: True)


@pytest.mark.usefixtures("amx_that_crashes")
def test_tests_and_demo_do_without_amx_where_it_crashes() -> None:
    note = bfloat16.do_without_amx_if_it_crashes()
    assert note.startswith("ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16, because ")
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_BF16"
    assert bfloat16.do_without_amx_if_it_crashes() == "", "it is known by now"


def test_bfloat16_here() -> None:
    """The tests set the needed variable, so it works."""
    outcome = bfloat16.try_bfloat16()
    assert outcome.code == 0, outcome.reason


def test_processors_without_amx(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags\t\t: fpu avx512_bf16\n")
    assert not bfloat16.shows_amx(cpuinfo)
    cpuinfo.write_text("flags\t\t: fpu avx512_bf16 amx_bf16 amx_tile\n")
    assert bfloat16.shows_amx(cpuinfo)
    assert not bfloat16.shows_amx(tmp_path / "not there")
