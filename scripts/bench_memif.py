"""Packets a second through thc-ps over memif, against testpmd forwarding (io mode) over the same device.

Both are loaded by the same generator (tests/worker_dpdk/bench/memif_load.cc): CODES packets of 1024 codes, 544 bytes
of UDP payload up. testpmd sends the same frames back; thc-ps adds them up and answers with 1056 bytes each. Runs
alternate; the medians and their ratio are printed. CPU 0 has the generator, CPU 1 the device under test.

--key compares thc-ps with a key (docs/security.md) to thc-ps without one instead. The generator makes and
checks tags, too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

EAL = ["--no-huge", "-m", "256", "--no-shconf", "--no-pci", "--no-telemetry", "--log-level=*:error"]


def memif(socket: str) -> str:
    """The vdev of the device under test."""
    return f"--vdev=net_memif0,role=server,id=0,socket-abstract=yes,mac=02:74:68:63:00:02,socket={socket}"


def testpmd_command(program: str, socket: str) -> list[str]:
    """One port, whose frames go back where they came from; testpmd's idle main thread stays on CPU 0."""
    eal = [*EAL, "--lcores=0@0,1@1", memif(socket)]
    return [program, *eal, "--", "--forward-mode=io", "--auto-start", "--total-num-mbufs=8192"]


def thc_ps_command(program: str, socket: str, key: list[str]) -> list[str]:
    """Run to completion on one thread."""
    eal = " ".join([*EAL, memif(socket)])
    return ["taskset", "-c", "1", program, "--dpdk", "--eal-args", eal, "--listen", "10.97.0.2", *key]


@contextlib.contextmanager
def running(command: list[str]) -> Iterator[None]:
    """Runs the device under test; shows its output when it does not live."""
    with tempfile.TemporaryFile() as log:
        # testpmd reads commands: an open pipe keeps it from seeing the end of input and stopping.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT)
        try:
            time.sleep(2)
            if process.poll() is not None:
                log.seek(0)
                sys.exit(f"{command[0]} ended with {process.returncode}:\n{log.read().decode(errors='replace')}")
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def measure(generator: str, mode: str, socket: str, key: list[str], arguments: argparse.Namespace) -> float:
    """Packets a second of one run."""
    command = ["taskset", "-c", "0", generator, "--mode", mode, "--socket", socket, *key]
    command += ["--window", str(arguments.window), "--seconds", str(arguments.seconds)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60 + arguments.seconds)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{result.stderr}{result.stdout}")
    print(f"  {mode}: {result.stdout.strip()}", file=sys.stderr)
    return float(json.loads(result.stdout)["packets_per_s"])


def compare_keys(generator: str, thc_ps: str, arguments: argparse.Namespace) -> None:
    """Print packets a second of thc-ps with a key, by those without one."""
    rates: dict[str, list[float]] = {"no key": [], "key": []}
    with tempfile.TemporaryDirectory() as folder:
        key_file = Path(folder) / "key"
        key_file.touch(0o600)
        key_file.write_text("5a" * 32)
        for run in range(arguments.runs):
            for name, key in (("no key", []), ("key", ["--key-file", str(key_file)])):
                socket = f"thc_bench_{os.getpid()}_{run}_{len(key)}"
                with running(thc_ps_command(thc_ps, socket, key)):
                    rates[name].append(measure(generator, "server", socket, key, arguments))
    without, keyed = (statistics.median(rates[name]) for name in ("no key", "key"))
    result = {
        "benchmark": "packets/s through thc-ps over memif with a key / without",
        "key_packets_per_s": keyed,
        "no_key_packets_per_s": without,
        "ratio": round(keyed / without, 3),
        "target": 0.75,
    }
    print(json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=Path("build/release"), help="build folder (preset release)")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--window", type=int, default=256, help="packets in flight")
    parser.add_argument("--key", action="store_true", help="compare thc-ps with and without a key")
    arguments = parser.parse_args()
    generator = str(arguments.build / "tests/memif_load")
    thc_ps = str(arguments.build / "ps_software/thc-ps")
    if arguments.key:
        compare_keys(generator, thc_ps, arguments)
        return
    testpmd = shutil.which("dpdk-testpmd")
    if testpmd is None:
        sys.exit("dpdk-testpmd is not installed (Debian: apt install dpdk-dev)")
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("this comparison needs two CPUs: one for the load, one for the device under test")
    rates: dict[str, list[float]] = {"forward": [], "server": []}
    for run in range(arguments.runs):
        socket = f"thc_bench_{os.getpid()}_{run}"
        with running(testpmd_command(testpmd, socket + "_t")):
            rates["forward"].append(measure(generator, "forward", socket + "_t", [], arguments))
        with running(thc_ps_command(thc_ps, socket + "_s", [])):
            rates["server"].append(measure(generator, "server", socket + "_s", [], arguments))
    forward, server = (statistics.median(rates[mode]) for mode in ("forward", "server"))
    result = {
        "benchmark": "packets/s through thc-ps over memif / testpmd io forwarding",
        "thc_ps_packets_per_s": server,
        "testpmd_packets_per_s": forward,
        "ratio": round(server / forward, 3),
        "target": 0.5,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
