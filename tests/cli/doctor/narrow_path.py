"""Prints the doctor's findings about a server behind a bridge that silently drops frames larger than its argument."""

import sys

from jumbo_hosts import SERVER_IP, connect_jumbo_hosts

from byteps_thc._cli.doctor.server import check_server
from byteps_thc._cli.doctor.way import Visit
from byteps_thc._cli.launch import ParameterServer
from thc_lab.namespaces import Namespaces, inside

with Namespaces() as namespaces:
    hosts = connect_jumbo_hosts(namespaces)
    hosts.narrow(int(sys.argv[1]))
    with inside(hosts.server):
        thc_ps = ParameterServer(ip=SERVER_IP)
    with thc_ps, inside(hosts.worker):
        for finding in check_server(Visit((SERVER_IP, int(thc_ps.address.split(":")[1])))):
            print(finding)
