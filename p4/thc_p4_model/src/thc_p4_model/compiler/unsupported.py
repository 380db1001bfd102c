"""Names of p4c's architectures that the model does not have: errors say so, and README's "Not supported" has them."""

_NAMES = """
    ActionProfile ActionSelector SelectorAction Atcam Alpm IdleTimeout
    Meter DirectMeter Lpf DirectLpf Wred DirectWred
    DirectRegister DirectRegisterAction MathUnit MathOp_t
    RegisterAction.execute_log RegisterAction.predicate Checksum.subtract_all_and_deposit
    invalidate is_validated
    DirectRegisterAction2 DirectRegisterAction3 DirectRegisterAction4 RegisterAction2 RegisterAction3 RegisterAction4
    LearnAction LearnAction2 LearnAction3 LearnAction4 MinMaxAction MinMaxAction2 MinMaxAction3 MinMaxAction4 Pktgen
    RegisterAction.address RegisterAction.enqueue RegisterAction.dequeue RegisterAction.push RegisterAction.pop
    RegisterAction.sweep RegisterAction.min8 RegisterAction.max8 RegisterAction.min16 RegisterAction.max16
    recirculate resubmit clone3 Checksum16
"""
UNSUPPORTED = frozenset(_NAMES.split())


def refusal(name: str) -> str | None:
    """The message for an undeclared name, if p4c has it: `Meter`, or a method, `Checksum.get`."""
    if name not in UNSUPPORTED:
        return None
    return f'{name} is not supported by the model: README, "Not supported"'
