"""Prints the doctor's findings about a switch (the P4 model), seen from a worker of its job."""

import tempfile
from pathlib import Path

from byteps_thc._cli.doctor.server import check_server, parse_server
from byteps_thc._cli.doctor.way import Visit
from thc_lab.demo_switch.site import Site
from thc_lab.demo_switch.software_switch import SoftwareSwitch, SwitchChoice
from thc_lab.namespaces import Namespaces, inside

with Namespaces() as namespaces, tempfile.TemporaryDirectory() as folder:
    workers = tuple(namespaces.add(f"worker{worker}") for worker in range(2))
    site = Site(1, namespaces.add("switch"), workers, SwitchChoice("v1model", "model"))
    site.connect()
    with SoftwareSwitch(site.testbed(job=1), Path(folder)) as switch:
        switch.wait_until_ready()
        with inside(workers[0]):
            print(check_server(Visit(parse_server(site.server))))
