"""Steps of the machine's clock reach no deadline: nothing reads it. Logs do, by spdlog; they only print it.

The soak cannot step CLOCK_REALTIME without stepping it for the whole machine, so this reads the sources instead.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("ps_software", "worker_dpdk", "byteps_thc")
# high_resolution_clock is the system's clock in libstdc++.
WALL_CLOCK = re.compile(
    r"\b(system_clock|high_resolution_clock|utc_clock|file_clock|CLOCK_REALTIME\w*|CLOCK_TAI|gettimeofday|timespec_get"
    r"|(?:std::|::|time\.)time\(|time\.time_ns|ftime\(|datetime\.now|datetime\.utcnow|SO_TIMESTAMP\w*)"
    r"|(?<![\w.:>])time\((?:NULL|nullptr|0|&)"
)
SUFFIXES = {".cc", ".h", ".py"}


def wall_clocks(text: str) -> list[str]:
    return [match.group() for match in WALL_CLOCK.finditer(text)]


def test_no_source_reads_the_wall_clock() -> None:
    sources = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    assert {path.suffix for path in sources} == SUFFIXES
    assert any("steady_clock" in path.read_text() for path in sources)
    found = {str(path.relative_to(ROOT)): clocks for path in sources if (clocks := wall_clocks(path.read_text()))}
    assert not found


@pytest.mark.parametrize(
    "line",
    [
        "auto now = std::chrono::system_clock::now();",
        "auto now = high_resolution_clock::now();",
        "gettimeofday(&now, nullptr);",
        "clock_gettime(CLOCK_REALTIME, &now);",
        "clock_gettime(CLOCK_REALTIME_COARSE, &now);",
        "const time_t now = time(nullptr);",
        "srand(std::time(0));",
        "now = time.time()",
    ],
)
def test_wall_clocks_are_found(line: str) -> None:
    assert wall_clocks(line)


@pytest.mark.parametrize(
    "line", ["std::chrono::steady_clock::now()", "time.monotonic()", "recv_time(0)", "clock.time()"]
)
def test_other_clocks_are_not(line: str) -> None:
    assert not wall_clocks(line)
