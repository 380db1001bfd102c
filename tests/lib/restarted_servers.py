"""Several thc-ps at addresses that stay the same, which are killed, drained and started again."""

import signal
from contextlib import ExitStack

from byteps_thc._cli.launch import ParameterServer


class RestartedServers:
    """`count` thc-ps, which end with `stack`."""

    def __init__(self, count: int, stack: ExitStack) -> None:
        self._stack = stack
        self._running = [stack.enter_context(ParameterServer()) for _ in range(count)]
        #: "IP:PORT" each
        self.addresses = [server.address for server in self._running]

    def kill(self, number: int) -> None:
        """End one without letting it say anything."""
        process = self._running[number].process
        process.send_signal(signal.SIGKILL)
        process.wait()

    def drain(self, number: int) -> None:
        """Let one end, and wait until it has, with exit code 0."""
        process = self._running[number].process
        process.terminate()
        assert process.wait(30) == 0

    def restart(self, number: int, *options: str) -> None:
        """Start one again that has ended, with these options of thc-ps."""
        port = int(self.addresses[number].rpartition(":")[2])
        self._running[number] = self._stack.enter_context(ParameterServer([*options], port=port))

    def all_but(self, number: int) -> list[str]:
        return self.addresses[:number] + self.addresses[number + 1 :]
