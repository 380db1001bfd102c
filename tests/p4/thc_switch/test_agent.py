"""The agent joins workers as thc-ps does, on a switch of the P4 model."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import _core_test
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from switch_control.site import Site

from byteps_thc._base.errors import TransportError
from byteps_thc._scheme.adding.tables import LookupTable
from thc_p4_model.switch import Switch
from thc_switch import Deployment, SwitchAgent, frames, plan
from thc_switch.hello import Hello, difference, parse_hello
from thc_switch.plan import Operation
from thc_switch.targets.model import ModelControl
from thc_switch.wire import ConfigField, ErrorPayload, ErrorReason, Flag, Header, MessageType, WelcomePayload

Describe = Callable[..., Deployment]
MakeFields = Callable[..., dict[str, Any]]


SiteOf = Callable[[Deployment], Site]


@pytest.fixture(scope="module")
def installed(deployment: Deployment, v1model_switch: Callable[..., Switch]) -> Switch:
    """A switch with the plan of `deployment`; agents of all tests take their turn on it."""
    switch = v1model_switch()
    ModelControl(switch).install(plan(deployment))
    return switch


@pytest.fixture
def site(deployment: Deployment, installed: Switch) -> Site:
    return Site(deployment, installed)


@pytest.fixture
def site_of(v1model_switch: Callable[..., Switch]) -> Callable[[Deployment], Site]:
    """A site with another deployment, on a switch of its own."""

    def make(deployment: Deployment) -> Site:
        switch = v1model_switch()
        ModelControl(switch).install(plan(deployment))
        return Site(deployment, switch)

    return make


def job_entries(site: Site, action: str) -> list[Any]:
    entries = site.switch.table_entries("ThcIngress.job_check.job")
    return [entry for entry in entries if entry.action.endswith(f".{action}")]


def test_welcome_tells_slots_window_shards_and_padding(site: Site) -> None:
    reply = site.hello()
    assert reply.header.epoch == 1000
    assert reply.header.worker_id == 0
    window_bytes = site.deployment.switch.buffer_bytes // 3
    assert reply.welcome == WelcomePayload(64, 8, window_bytes, shards=1, codes_multiple=1024)
    assert site.open_epoch() == 1000


def test_jobs_are_closed_before_the_first_hello(site: Site) -> None:
    assert site.open_epoch() is None
    site.join_all()
    SwitchAgent(site.deployment, site.control)
    assert site.open_epoch() is None, "an agent that starts cannot know who is there"


def test_a_repeated_hello_resets_nothing(site: Site) -> None:
    epoch = site.join_all()
    site.send_codes(0, epoch)
    assert any(site.rounds())
    assert site.hello().header.epoch == epoch
    assert any(site.rounds())


def verdict(datagram: bytes, first: bytes) -> list[int] | None:
    """The refusal of a HELLO to the job that `first` began, by the agent's code and by thc-ps's (tests/csrc/python)."""
    hello = None if len(datagram) < Header.SIZE_BYTES else parse_hello(Header.unpack(datagram), datagram)
    job = parse_hello(Header.unpack(first), first)
    assert isinstance(job, Hello)
    refusal = difference(hello.config, job.config) if isinstance(hello, Hello) else hello
    found = [refusal.reason, refusal.field, refusal.job_value] if refusal else [0, 0, 0] if hello else None
    assert found == _core_test.hello_verdict(datagram, first)
    return found


@pytest.mark.parametrize(
    ("changes", "reason", "field", "job_value"),
    [
        ({"num_workers": 4, "quorum": 4}, ErrorReason.CONFIG_MISMATCH, ConfigField.NUM_WORKERS, 3),
        ({"table": LookupTable.uniform(3)}, ErrorReason.CONFIG_MISMATCH, ConfigField.CODE_BITS, 4),
        ({"table": LookupTable.uniform(6)}, ErrorReason.CONFIG_MISMATCH, ConfigField.CODE_BITS, 4),
        ({"value_bits": 16}, ErrorReason.CONFIG_MISMATCH, ConfigField.VALUE_BITS, 8),
        ({"table": LookupTable.solve(4, 30, 1 / 32)}, ErrorReason.CONFIG_MISMATCH, ConfigField.GRANULARITY, 15),
        ({"codes_per_packet": 2048}, ErrorReason.CONFIG_MISMATCH, ConfigField.CODES_PER_PACKET, 1024),
        ({"quorum": 2}, ErrorReason.CONFIG_MISMATCH, ConfigField.QUORUM, 3),
        ({"code_bits": 9}, ErrorReason.BAD_CONFIG, ConfigField.CODE_BITS, 0),
        ({"num_workers": 0}, ErrorReason.BAD_CONFIG, ConfigField.NUM_WORKERS, 0),
        ({"num_workers": 65}, ErrorReason.BAD_CONFIG, ConfigField.NUM_WORKERS, 0),
        ({"worker_id": 3}, ErrorReason.BAD_CONFIG, ConfigField.WORKER_ID, 0),
        ({"value_bits": 12}, ErrorReason.BAD_CONFIG, ConfigField.VALUE_BITS, 0),
        ({"quorum": 0}, ErrorReason.BAD_CONFIG, ConfigField.QUORUM, 0),
        ({"quorum": 4}, ErrorReason.BAD_CONFIG, ConfigField.QUORUM, 0),
        ({"slots": 1}, ErrorReason.BAD_CONFIG, ConfigField.SLOTS, 0),
        ({"codes_per_packet": 63}, ErrorReason.BAD_CONFIG, ConfigField.CODES_PER_PACKET, 0),
        ({"codes_per_packet": 40000}, ErrorReason.BAD_CONFIG, ConfigField.CODES_PER_PACKET, 0),
        ({"table_hash": 1}, ErrorReason.BAD_CONFIG, ConfigField.TABLE, 0),
        ({"granularity": 0}, ErrorReason.BAD_CONFIG, ConfigField.GRANULARITY, 0),
        ({"granularity": 16}, ErrorReason.BAD_CONFIG, ConfigField.GRANULARITY, 0),
        ({"num_workers": 18, "quorum": 18}, ErrorReason.OVERFLOW, ConfigField.GRANULARITY, 0),
    ],
)
def test_a_refusal_names_the_field_as_thc_ps_does(
    site: Site, changes: dict[str, Any], reason: ErrorReason, field: ConfigField, job_value: int
) -> None:
    reply = site.hello(**changes)
    assert reply.error == ErrorPayload(0, reason, field, job_value)
    assert reply.header.payload_count == 0
    assert site.open_epoch() is None
    assert verdict(site.hello_bytes(**changes), site.hello_bytes()) == [reason, field, job_value]


def test_a_different_table_of_the_same_granularity(describe: Describe, a_job: MakeFields, site_of: SiteOf) -> None:
    site = site_of(describe([a_job(thc={"granularity": 30, "p": 1 / 32})]))
    values = site.deployment.jobs[0].table.values
    other = LookupTable(4, 30, 1 / 32, (0, values[1] + 1, *values[2:]), 0.0)
    assert site.hello(table=other).error == ErrorPayload(0, ErrorReason.CONFIG_MISMATCH, ConfigField.TABLE, 0)


def test_the_first_worker_settles_what_the_job_description_does_not(site: Site) -> None:
    site.hello(0, arithmetic=0x01A3F2, settings_hash=5, slots=16)
    settings_error = ErrorPayload(0, ErrorReason.CONFIG_MISMATCH, ConfigField.SETTINGS, 0)
    assert site.hello(1, arithmetic=0x01A3F2, settings_hash=6, slots=16).error == settings_error
    arithmetic_error = ErrorPayload(0, ErrorReason.CONFIG_MISMATCH, ConfigField.ARITHMETIC, 0x01A3F2)
    other = site.hello(1, arithmetic=0x02A3F2, settings_hash=6, slots=16)
    assert other.error == arithmetic_error, "other settings may follow from it"
    slots_error = ErrorPayload(0, ErrorReason.CONFIG_MISMATCH, ConfigField.SLOTS, 16)
    assert site.hello(1, arithmetic=0x01A3F2, settings_hash=5, slots=0).error == slots_error
    assert site.hello(1, arithmetic=0x01A3F2, settings_hash=5, slots=16).welcome.slots == 16
    first = site.hello_bytes(arithmetic=0x01A3F2, settings_hash=5, slots=16)
    for error, changes in (
        (settings_error, {"arithmetic": 0x01A3F2, "settings_hash": 6, "slots": 16}),
        (arithmetic_error, {"arithmetic": 0x02A3F2, "settings_hash": 6, "slots": 16}),
        (slots_error, {"arithmetic": 0x01A3F2, "settings_hash": 5}),
    ):
        assert verdict(site.hello_bytes(**changes), first) == [error.reason, error.field, error.job_value]


@pytest.mark.parametrize(
    ("asked", "slots", "norm_slots"), [(0, 64, 8), (2, 2, 1), (15, 15, 1), (64, 64, 8), (99, 64, 8)]
)
def test_slots_asked_for(site: Site, asked: int, slots: int, norm_slots: int) -> None:
    welcome = site.hello(slots=asked).welcome
    assert (welcome.slots, welcome.norm_slots) == (slots, norm_slots)
    assert sorted(entry.match["slot"] for entry in job_entries(site, "enter")) == [
        (0, norm_slots - 1),
        (norm_slots, slots - 1),
    ]


def test_an_unknown_job(site: Site) -> None:
    assert site.hello(job_id=99).error == ErrorPayload(0, ErrorReason.UNKNOWN_JOB, 0, 0)


def test_a_worker_must_say_hello_from_its_own_address(site: Site) -> None:
    reply = site.send(site.hello_bytes(), src_port=50002)
    assert reply is not None
    assert reply.error == ErrorPayload(0, ErrorReason.BAD_CONFIG, ConfigField.WORKER_ID, 0)
    assert site.open_epoch() is None


def test_another_process_is_a_duplicate_while_the_first_one_is_heard_of(site: Site) -> None:
    epoch = site.join_all()
    duplicate = ErrorPayload(1 << 1, ErrorReason.DUPLICATE_WORKER, 0, 0)
    site.now_s += 0.9
    assert site.hello(1, nonce=99).error == duplicate
    site.now_s += 600.0
    site.send_codes(1, epoch)
    assert site.hello(1, nonce=99).error == duplicate, "its packets were counted since"
    site.now_s += 0.5
    site.send_codes(1, epoch)
    assert site.hello(1, nonce=99).error == duplicate
    site.now_s += 0.9
    assert site.hello(1, nonce=99).error == duplicate
    assert site.open_epoch() == epoch


def test_hellos_of_another_process_are_no_sign_of_life(site: Site) -> None:
    epoch = site.join_all()
    kinds = []
    for _ in range(3):
        site.now_s += 0.4
        kinds.append(site.hello(1, nonce=99).header.message_type)
        site.switch.process(
            site.deployment.jobs[0].workers[1].port, frames.build(site.datagram(site.hello_bytes(worker=1), worker=1))
        )
    assert kinds == [MessageType.ERROR, MessageType.ERROR, MessageType.WELCOME], "one of two HELLOs got lost each time"
    assert site.open_epoch() == epoch + 1


def test_a_restarted_worker_starts_the_job_over(site: Site) -> None:
    epoch = site.join_all()
    site.send_codes(1, epoch)
    assert any(site.rounds())
    site.now_s += 0.1
    assert site.hello(1, nonce=99).error.reason == ErrorReason.DUPLICATE_WORKER
    site.now_s += 1.0
    reply = site.hello(1, nonce=99)
    assert reply.header.epoch == site.open_epoch() == epoch + 1
    assert not any(site.rounds())
    stale = [
        entry
        for entry in site.switch.table_entries("ThcIngress.job_check.job")
        if entry.params == {"reason": ErrorReason.STALE_EPOCH}
    ]
    assert [entry.match["epoch"][0] for entry in stale] == [epoch]
    assert site.hello(0).header.epoch == epoch + 1, "a survivor that says HELLO joins the new incarnation"
    assert site.open_epoch() == epoch + 1


def test_the_last_epochs_are_remembered(site: Site) -> None:
    site.join_all()
    for nonce in range(10, 16):
        site.now_s += 2.0
        site.hello(1, nonce=nonce)
    assert sorted(entry.match["epoch"][0] for entry in job_entries(site, "refuse")) == [1002, 1003, 1004, 1005]
    assert site.open_epoch() == 1006


def answers_to(site: Site, worker: int, sender: int | None = None, **changes: int) -> list[tuple[Header, bytes]]:
    """All that the agent sends for a HELLO, PROBEs too. sender: the worker whose address it comes from."""
    datagram = site.datagram(site.hello_bytes(worker=worker, **changes), worker=worker if sender is None else sender)
    parsed = [frames.parse(frame) for frame in site.agent.handle(frames.build(datagram), site.now_s)]
    payloads = [answer.payload for answer in parsed if answer is not None]
    return [(Header.unpack(payload), payload[Header.SIZE_BYTES :]) for payload in payloads]


def refusal_of(answers: list[tuple[Header, bytes]]) -> ErrorPayload:
    assert answers[0][0].message_type == MessageType.ERROR
    return ErrorPayload.unpack(answers[0][1])


def hellos_of_another_training(site: Site, seconds: float, alive: tuple[int, ...] = ()) -> list[list[MessageType]]:
    """Return the agent's messages for each HELLO of worker 1 of run 12; workers in `alive` answer PROBE."""
    sent = []
    end_s = site.now_s + seconds
    while site.now_s < end_s:
        headers = [header for header, _ in answers_to(site, 1, nonce=99, run=12)]
        sent.append([MessageType(header.message_type) for header in headers])
        site.now_s += 0.1
        for header in headers:
            if header.message_type == MessageType.PROBE and header.worker_id in alive:
                site.send(replace(header, message_type=MessageType.ALIVE).pack(), worker=header.worker_id)
        site.now_s += 0.1
    return sent


def test_another_training_is_refused_as_long_as_a_worker_answers(site: Site) -> None:
    epochs = {site.hello(worker, run=11).header.epoch for worker in range(3)}
    site.now_s += 60.0  # they compute
    for sent in hellos_of_another_training(site, 5.0, alive=(2,)):
        assert sent == [MessageType.ERROR, *[MessageType.PROBE] * 3]
    untold = refusal_of(answers_to(site, 1, nonce=99, run=0))
    assert untold == ErrorPayload(reason=ErrorReason.OTHER_TRAINING)
    assert {site.open_epoch()} == epochs
    assert {site.hello(0, run=11).header.epoch} == epochs, "the training's own are in it as before"


def test_another_training_gets_the_job_when_nobody_answers(site: Site) -> None:
    epoch = site.hello(0, run=11).header.epoch
    sent = hellos_of_another_training(site, 2.0)
    assert sent[:5] == [[MessageType.ERROR, MessageType.PROBE]] * 5
    assert sent.index([MessageType.WELCOME]) in range(5, 8)
    assert site.open_epoch() == epoch + 1
    assert site.send_codes(0, epoch) == ErrorReason.STALE_EPOCH, "it was stopped, and goes on"
    first = refusal_of(answers_to(site, 0, run=11))
    assert first.reason == ErrorReason.OTHER_TRAINING, "now the first one is the other"


def test_what_was_not_answered_long_ago_counts_no_more(site: Site) -> None:
    epoch = site.hello(0, run=11).header.epoch
    for _ in range(3):
        hellos_of_another_training(site, 0.9)
        site.now_s += 60.0
    assert site.open_epoch() == epoch


def test_another_training_gets_the_job_when_all_have_left(site: Site) -> None:
    epoch = site.hello(0, run=11).header.epoch
    site.goodbye(0, epoch)
    assert site.hello(1, run=12).header.epoch == epoch + 1


def test_another_address_does_not_ask_for_workers_lives(site: Site) -> None:
    site.hello(0, run=11)
    answers = answers_to(site, 1, sender=2, run=12)
    assert len(answers) == 1
    assert refusal_of(answers).reason == ErrorReason.BAD_CONFIG


@pytest.mark.parametrize("message_type", [MessageType.ALIVE, MessageType.GOODBYE])
def test_a_workers_notices_count_from_its_own_address_and_epoch(site: Site, message_type: MessageType) -> None:
    epoch = site.join_all()
    notice = Header(message_type=message_type, code_bits=4, value_bits=8, num_workers=3, job_id=1, epoch=epoch)
    assert site.send(notice.pack(), worker=1) is None
    assert site.send(replace(notice, epoch=epoch + 1).pack()) is None
    assert site.send(replace(notice, job_id=9).pack()) is None
    assert site.send(notice.pack() + b"x") is None
    assert site.agent.counters["left"] == 0
    assert site.send(notice.pack()) is None
    assert site.agent.counters["left"] == (message_type == MessageType.GOODBYE)
    dropped = {name: count for name, count in site.agent.counters.items() if name.startswith("dropped")}
    assert dropped == {"dropped_sender": 1, "dropped_header": 2, "dropped_length": 1}


def test_a_worker_that_left_may_come_back_at_once(site: Site) -> None:
    epoch = site.join_all()
    site.goodbye(1, epoch)
    assert site.open_epoch() == epoch
    assert site.hello(1, nonce=99).header.epoch == epoch + 1


def test_the_last_goodbye_closes_the_job(site: Site) -> None:
    epoch = site.join_all()
    for worker in range(3):
        assert site.open_epoch() == epoch
        assert site.goodbye(worker, epoch) is None
    assert site.open_epoch() is None
    assert not site.switch.table_entries("ThcIngress.job_check.job")
    assert site.hello(0, settings_hash=1, nonce=50).header.epoch == epoch + 1, "another run may have other settings"


@pytest.mark.parametrize(
    "changes",
    [{"epoch": 1}, {"worker_id": 3}, {"num_workers": 2}, {"value_bits": 16}, {"flags": 2}, {"switch_pass": 1}],
)
def test_a_goodbye_that_is_not_the_workers_is_dropped(site: Site, changes: dict[str, int]) -> None:
    epoch = site.join_all()
    for worker in (1, 2):
        site.goodbye(worker, epoch)
    assert site.goodbye(0, epoch, **changes) is None
    assert site.open_epoch() == epoch


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"version": 1}, "version"),
        ({"message_type": MessageType.WELCOME}, "type"),
        ({"epoch": 1}, "header"),
        ({"slot": 1}, "header"),
        ({"flags": Flag.PARTIAL}, "header"),
        ({"flags": 0x80}, "header"),
        ({"contributions": 1}, "header"),
        ({"switch_state": 1}, "header"),
    ],
)
def test_messages_that_get_no_answer(site: Site, changes: dict[str, int], why: str) -> None:
    assert site.send(site.hello_bytes(**changes)) is None
    assert site.agent.counters == {f"dropped_{why}": 1}


def test_other_traffic_on_the_cpu_port(site: Site) -> None:
    assert site.send(site.hello_bytes(), dst_port=1) is None
    assert site.agent.handle(b"\xff" * 60, site.now_s) == []
    assert site.agent.counters == {"dropped_other": 2}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_garbage_never_breaks_the_agent(site: Site, data: st.DataObject) -> None:
    hello = bytearray(site.hello_bytes())
    for place, value in data.draw(st.lists(st.tuples(st.integers(0, len(hello) - 1), st.integers(0, 255)))):
        hello[place] = value
    cut = data.draw(st.integers(0, len(hello)))
    site.send(bytes(hello[:cut]))
    verdict(bytes(hello[:cut]), site.hello_bytes())
    site.agent.handle(data.draw(st.binary(max_size=80)), site.now_s)


def test_tables_that_were_installed_anew_open_at_the_next_hello(site: Site) -> None:
    epoch = site.join_all()
    site.control.install(plan(site.deployment))
    assert site.open_epoch() is None
    assert site.hello(0).header.epoch == site.open_epoch() == epoch + 1
    assert site.send_codes(1, epoch) == ErrorReason.UNKNOWN_JOB, "a survivor joins again"
    assert {site.hello(worker).header.epoch for worker in (1, 2)} == {epoch + 1}


def test_a_switch_that_fails_half_way_is_told_everything_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    epoch = site.join_all()
    site.send_codes(1, epoch)
    site.hello(1, nonce=99)  # the agent learns that the packet was counted
    site.now_s += 2.0
    apply = site.control.apply
    for steps in range(4):
        calls = iter(range(steps))

        def failing(operations: Iterable[Operation], calls: Iterator[int] = calls) -> None:
            if next(calls, None) is None:
                raise TransportError("no answer from the switch")
            apply(operations)

        monkeypatch.setattr(site.control, "apply", failing)
        with pytest.raises(TransportError):
            site.hello(1, nonce=100 + steps)
        monkeypatch.undo()
    assert site.hello(1, nonce=200).header.epoch == site.open_epoch()
    assert not any(site.rounds())
    assert site.send_codes(0, epoch) == ErrorReason.STALE_EPOCH, "its incarnation was superseded, if not at once"


def test_jobs_do_not_touch_each_other(describe: Describe, a_job: MakeFields, site_of: SiteOf) -> None:
    site = site_of(describe([a_job(1), a_job(2, first_worker=3)]))
    first = site.join_all(0)
    window_alone = site.hello(0, job=0).welcome.window_bytes
    second = site.join_all(1)
    assert site.hello(0, job=0).welcome.window_bytes == window_alone // 2
    site.send_codes(0, first)
    site.now_s += 2
    assert site.hello(1, job=1, nonce=99).header.epoch == second + 1
    assert site.open_epoch(0) == first
    assert any(site.rounds(0))
