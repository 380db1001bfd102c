"""A real BytePS job on loopback: scheduler, servers and workers, each under bpslaunch in a process of its own.

    with BytepsLab(tmp_path, workers=2) as lab:
        lab.start(Path("worker.py"), "--rounds", "3")
        for worker in lab.wait(deadline_s=60):
            assert worker.status == 0, worker.output

The context ends all processes: BytePS's own servers and schedulers wait for ever for a worker that has died.
"""

from byteps_lab.lab import BytepsLab, Finished, why_not

__all__ = ["BytepsLab", "Finished", "why_not"]
