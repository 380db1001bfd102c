"""Prints how many codes a packet has with codes_per_packet="auto" over this network namespace's loopback."""

from byteps_thc._cli.launch import ParameterServer
from byteps_thc._net.session import Session
from byteps_thc._scheme.config import ThcConfig

config = ThcConfig(codes_per_packet="auto")
with (
    ParameterServer() as server,
    Session([server.address], job=1, worker=0, workers=1, config=config) as session,
):
    print(session.codes_per_packet)
