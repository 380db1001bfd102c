"""Names that BFRT Python and BFRT gRPC share."""

from thc_switch.description import PortSettings, RecirculationPort

_FEC = {"none": "BF_FEC_TYP_NONE", "firecode": "BF_FEC_TYP_FIRECODE", "reed_solomon": "BF_FEC_TYP_REED_SOLOMON"}
_AUTO_NEGOTIATION = {None: "PM_AN_DEFAULT", True: "PM_AN_FORCE_ENABLE", False: "PM_AN_FORCE_DISABLE"}
_LOOPBACK = "BF_LPBK_MAC_NEAR"
#: `IN_FLIGHT_S` of a Tofino: its whole packet buffer (22 or 64 MB) through one port of 100 Gbit/s takes 6 ms.
IN_FLIGHT_S = 0.01
#: Nodes of the chips' own tables.
CHIP_NODE = {"tofino1": "tf1", "tofino2": "tf2"}
#: Fields of registers that hold pairs; a register of plain words has one field, f1.
_PAIRS = {"slot_use": ("round", "order")}
#: Multicast nodes for flooding are numbered after the workers' nodes, which have their 16-bit replication ids.
_FLOOD_NODES = 1 << 16


def port_fields(port: PortSettings | RecirculationPort) -> tuple[int, dict[str, str]]:
    """Return the number of a front-panel port, and its entry's fields besides PORT_ENABLE."""
    if isinstance(port, PortSettings):
        mode = {"AUTO_NEGOTIATION": _AUTO_NEGOTIATION[port.auto_negotiation]}
        return port.number, {"SPEED": f"BF_SPEED_{port.speed}", "FEC": _FEC[port.fec], **mode}
    return port.port, {"SPEED": f"BF_SPEED_{port.loopback_speed}", "FEC": _FEC["none"], "LOOPBACK_MODE": _LOOPBACK}


def register_fields(register: str) -> tuple[str, ...]:
    """Return the data fields of a register's elements."""
    return _PAIRS.get(register.rpartition(".")[2], ("f1",))


def flood_node(group: int) -> int:
    """Return the multicast node of the copies without replication id in a group."""
    return _FLOOD_NODES + group
