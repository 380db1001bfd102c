"""Prints how many codes a packet has with codes_per_packet="auto" over this network namespace's loopback."""

from byteps_thc.config import ThcConfig
from byteps_thc.tools.launch import ParameterServer
from byteps_thc.transport.session import Session

config = ThcConfig(codes_per_packet="auto")
with (
    ParameterServer() as server,
    Session([server.address], job=1, worker=0, workers=1, config=config) as session,
):
    print(session.codes_per_packet)
