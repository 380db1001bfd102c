"""Steps of the machine's clock reach no deadline: nothing reads it. Logs do, by spdlog; they only print it.

The soak cannot step CLOCK_REALTIME without stepping it for the whole machine, so this reads the sources instead.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("ps_software", "worker_dpdk", "byteps_thc")
# high_resolution_clock is the system's clock in libstdc++.
WALL_CLOCK = re.compile(
    r"\b(system_clock|high_resolution_clock|utc_clock|file_clock|CLOCK_REALTIME\w*|CLOCK_TAI|gettimeofday|timespec_get"
    r"|(?:std::|::|time\.)time\(|time\.time_ns|ftime\(|datetime\.now|datetime\.utcnow|SO_TIMESTAMP\w*)"
    r"|(?<![\w.:>])time\((?:NULL|nullptr|0|&)"
)
SUFFIXES = {".cc", ".h", ".py"}


def test_no_source_reads_the_wall_clock() -> None:
    sources = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    assert {path.suffix for path in sources} == SUFFIXES
    assert any("steady_clock" in path.read_text() for path in sources)
    found = {
        str(path.relative_to(ROOT)): clocks for path in sources if (clocks := WALL_CLOCK.findall(path.read_text()))
    }
    assert not found
    for line in ("system_clock::now()", "clock_gettime(CLOCK_REALTIME, &now);", "time(nullptr)", "now = time.time()"):
        assert WALL_CLOCK.search(line), line
