"""Prints the doctor's findings about a switch (the P4 model), seen from a worker of its job."""

from __future__ import annotations

import tempfile
from pathlib import Path

from byteps_thc.config import ThcConfig
from byteps_thc.tools.demo.namespaces import Namespaces, inside
from byteps_thc.tools.demo.site import Site
from byteps_thc.tools.demo.software_switch import SoftwareSwitch, SwitchChoice, describe
from byteps_thc.tools.doctor.server import check_server, parse_server


def main() -> None:
    with Namespaces() as namespaces, tempfile.TemporaryDirectory() as folder:
        workers = tuple(namespaces.add(f"worker{worker}") for worker in range(2))
        site = Site(1, namespaces.add("switch"), workers)
        site.connect(namespaces)
        deployment = describe(site, "v1model", 1, ThcConfig())
        switch = SoftwareSwitch(site, SwitchChoice("v1model", "model"), deployment, Path(folder))
        try:
            switch.wait_until_ready()
            with inside(workers[0]):
                print(check_server(parse_server(site.server)))
        finally:
            switch.stop()


if __name__ == "__main__":
    main()
