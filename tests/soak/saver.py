"""A worker whose disk is full when it saves: saver.py SERVER DIRECTORY, a job of its own.

DIRECTORY is on a small file system of its own (scarcity.on_small_disk). Saves a checkpoint, fills the disk, and saves
again, which must fail; then it averages on, and the earlier checkpoint must load and give the same averages again.
Ends with 0 when all that is so.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import torch

from byteps_thc import Compressor, GradientAverager, Session, ThcConfig
from byteps_thc._net.session import Timeouts, UdpConfig
from byteps_thc._scheme.arrays import F32

JOB = 2
COORDINATES = 8 * 1024
STEPS = 3


def average_on(averager: GradientAverager) -> list[F32]:
    averages = []
    for step in range(STEPS):
        gradient = np.random.default_rng(step).standard_normal(COORDINATES, np.float32)
        average = np.empty_like(gradient)
        averager.average({"w": gradient}, {"w": average})
        averages.append(average)
    return averages


def save(averager: GradientAverager, path: Path) -> None:
    """Save as a careful user does: the earlier checkpoint stays until the new one is whole."""
    new = path.with_suffix(".new")
    try:
        torch.save(averager.state_dict(), new)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(os.sysconf("SC_PAGE_SIZE")))
        except OSError:
            return


def save_on_full_disk(averager: GradientAverager, directory: Path) -> None:
    checkpoint, filler = directory / "checkpoint.pt", directory / "filler"
    average_on(averager)
    save(averager, checkpoint)
    fill(filler)
    expected = average_on(averager)
    try:
        save(averager, checkpoint)
    except (OSError, RuntimeError) as error:  # torch tells some of the system's errors by RuntimeError
        print(f"saver: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
    else:
        sys.exit("saver: a checkpoint was saved on a full disk")
    average_on(averager)
    averager.load_state_dict(torch.load(checkpoint, weights_only=False))
    if not all(map(np.array_equal, average_on(averager), expected)):
        sys.exit("saver: the earlier checkpoint gives other averages")
    filler.unlink()
    save(averager, checkpoint)


def main() -> None:
    server, directory = sys.argv[1], Path(sys.argv[2])
    config = ThcConfig(codes_per_packet=1024)
    with Session(
        [server],
        job=JOB,
        worker=0,
        workers=1,
        config=config,
        timeouts=Timeouts(connect_s=30, operation_s=30),
        backend=UdpConfig(local="127.0.0.1:0"),
    ) as session:
        save_on_full_disk(GradientAverager(session, Compressor(config, workers=1, worker=0)), directory)


if __name__ == "__main__":
    main()
