"""Packets a second through thc-ps over memif, against testpmd forwarding (io mode) over the same device.

Both are loaded by the same generator (memif_load.cc): CODES packets of 1024 codes, 544 bytes
of UDP payload up. testpmd sends the same frames back; thc-ps adds them up and answers with 1056 bytes each. Runs
alternate; the medians and their ratio are reported. CPU 0 has the generator, CPU 1 the device under test.

--queues 1 2 does so with each number of queues, threads of thc-ps and forwarding threads of testpmd, and
prints a line for each. All threads of the device under test share CPU 1 unless each can have a CPU. With two CPUs the
figures show a queue's cost, not its gain.

--key compares thc-ps with a key (docs/contributors/security.md) to thc-ps without one instead. The generator makes and
checks tags, too.
"""

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

from ratio import Row, report

TARGET = 0.5
EAL = ["--no-huge", "-m", "256", "--no-shconf", "--no-pci", "--no-telemetry", "--log-level=*:error"]


def memif(socket: str) -> str:
    """The vdev of the device under test."""
    return f"--vdev=net_memif0,role=server,id=0,socket-abstract=yes,mac=02:74:68:63:00:02,socket={socket}"


def device_cpus(queues: int) -> list[int]:
    """CPUs of the device under test: one for each queue, or CPU 1 for all queues."""
    available = sorted(os.sched_getaffinity(0))
    return available[1 : queues + 1] if len(available) > queues else [1]


def testpmd_command(program: str, socket: str, queues: int) -> list[str]:
    """One port, which returns frames to their sender; testpmd's idle main thread stays on CPU 0."""
    cpus = device_cpus(queues)
    lcores = ",".join(f"{i + 1}@{cpus[i % len(cpus)]}" for i in range(queues))
    eal = [*EAL, f"--lcores=0@0,{lcores}", memif(socket)]
    ports = [f"--rxq={queues}", f"--txq={queues}", f"--nb-cores={queues}"]
    return [program, *eal, "--", "--forward-mode=io", "--auto-start", "--total-num-mbufs=16384", *ports]


def thc_ps_command(program: str, socket: str, key: list[str], queues: int = 1) -> list[str]:
    """Run to completion, on a thread for each queue."""
    eal = " ".join([*EAL, memif(socket)])
    cpus = ",".join(map(str, device_cpus(queues)))
    command = ["taskset", "-c", cpus, program, "--dpdk", "--eal-args", eal, "--listen", "10.97.0.2"]
    return [*command, "--threads", str(queues), *key]


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


def measure(
    generator: str, mode: str, socket: str, key: list[str], arguments: argparse.Namespace, queues: int = 1
) -> float:
    """Packets a second of one run."""
    command = ["taskset", "-c", "0", generator, "--mode", mode, "--socket", socket, "--queues", str(queues), *key]
    command += ["--window", str(arguments.window), "--seconds", str(arguments.seconds)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60 + arguments.seconds)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{result.stderr}{result.stdout}")
    print(f"  {mode}: {result.stdout.strip()}", file=sys.stderr)
    return float(json.loads(result.stdout)["packets_per_s"])


def compare_keys(generator: str, thc_ps: str, arguments: argparse.Namespace) -> None:
    """Print packets a second of thc-ps with a key, over its rate without one."""
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


def compare_testpmd(generator: str, thc_ps: str, testpmd: str, arguments: argparse.Namespace, queues: int) -> Row:
    """Packets of thc-ps and testpmd."""
    rates: dict[str, list[float]] = {"forward": [], "server": []}
    for run in range(arguments.runs):
        socket = f"thc_bench_{os.getpid()}_{queues}_{run}"
        with running(testpmd_command(testpmd, socket + "_t", queues)):
            rates["forward"].append(measure(generator, "forward", socket + "_t", [], arguments, queues))
        with running(thc_ps_command(thc_ps, socket + "_s", [], queues)):
            rates["server"].append(measure(generator, "server", socket + "_s", [], arguments, queues))
    forward, server = (1e6 / statistics.median(rates[mode]) for mode in ("forward", "server"))
    what, peer = "thc-ps over memif, per packet of 1024 codes", "testpmd io forwarding, same vdev"
    if queues > 1:
        what += f", {queues} queues"
    ratio = forward / server
    return Row(what, server, peer, forward, f">= {TARGET}x its packets/s", ratio, ratio >= TARGET)


def built() -> Path:
    """Build the preset benchmarks; return its folder."""
    for step in (["--preset", "benchmarks"], ["--build", "--preset", "benchmarks", "-j", str(os.cpu_count())]):
        subprocess.run(["cmake", *step], check=True, stdout=subprocess.DEVNULL)
    return Path("build/benchmarks")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--window", type=int, default=256, help="packets in flight")
    parser.add_argument("--queues", type=int, nargs="+", default=[1], help="numbers of queues to compare, one by one")
    parser.add_argument("--key", action="store_true", help="compare thc-ps with and without a key")
    arguments = parser.parse_args()
    build = built()
    generator, thc_ps = str(build / "tests/memif_load"), str(build / "ps_software/thc-ps")
    if arguments.key:
        compare_keys(generator, thc_ps, arguments)
        return
    testpmd = shutil.which("dpdk-testpmd")
    if testpmd is None:
        sys.exit("dpdk-testpmd is not installed (Debian: apt install dpdk-dev)")
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("this comparison needs two CPUs: one for the load, one for the device under test")
    report(
        [compare_testpmd(generator, thc_ps, testpmd, arguments, queues) for queues in arguments.queues], arguments.json
    )


if __name__ == "__main__":
    main()
