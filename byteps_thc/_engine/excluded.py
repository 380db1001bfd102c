"""Large parameters that are excluded from compression, in buffers of their own.

Beside compressed ones each of their elements costs an index of 8 bytes, and the code of the zero in its place.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from byteps_thc._engine.buffers import GradientBuffer, ParameterSlice
from byteps_thc._engine.policy import CompressionPolicy

#: Of such a parameter, at least: a collective of its own costs more than the codes of a smaller one.
_OWN_BUFFER_ELEMENTS = 1 << 14


def apart(buffer: GradientBuffer, policy: CompressionPolicy) -> list[GradientBuffer]:
    """Return the parts of a buffer, one after another, in which large excluded parameters are by themselves.

    Without any, that is the buffer.
    """

    def alone(part: ParameterSlice) -> bool:
        return part.size >= _OWN_BUFFER_ELEMENTS and policy.excludes(part.name)

    runs = [list(run) for _, run in itertools.groupby(buffer.parameters, alone)]
    if len(runs) < 2:
        return [buffer]
    cuts = [0, *(run[0].start for run in runs[1:]), buffer.gradient.numel()]
    return [
        GradientBuffer(
            f"{buffer.key}, elements {start} to {stop}",
            buffer.gradient[start:stop],
            tuple(replace(part, start=part.start - start, stop=part.stop - start) for part in run),
        )
        for run, (start, stop) in zip(runs, itertools.pairwise(cuts), strict=True)
    ]
