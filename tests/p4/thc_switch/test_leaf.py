"""The agent of a leaf joins the root when its workers join it, and passes on the root's messages."""

import dataclasses
import logging

import numpy as np
import pytest
from scapy.packet import Packet
from switch_lab.jobs import CODES_PER_PACKET, Worker
from switch_lab.racks import ROOT_EPOCH, ROOT_IP, RackLab, Sent, hello_of
from switch_lab.targets.model import v1model
from switch_lab.targets.switch import SwitchTarget
from thc_scapy import PORT, REASONS, TYPES, Thc, ThcChallenge, ThcError, ThcHello, ThcWelcome

from byteps_thc._base.errors import TransportError
from thc_switch.wire import ConfigField

ROOT = (ROOT_IP, PORT)


@pytest.fixture(scope="module")
def leaf() -> SwitchTarget:
    return v1model()


@pytest.fixture
def lab(leaf: SwitchTarget) -> RackLab:
    """No worker has joined."""
    return RackLab(leaf)


def kinds(sent: list[Sent]) -> list[tuple[tuple[str, int], str]]:
    names = {value: name for name, value in TYPES.items()}
    return [(to, names[Thc(datagram).message_type]) for to, datagram in sent]


def error(lab: RackLab, request: Thc, reason: str, **fields: int) -> Packet:
    return lab.answer(request, "error", payload_count=0) / ThcError(reason=REASONS[reason], **fields)


def codes(lab: RackLab, worker: Worker, **fields: int) -> list[Sent]:
    return lab.codes(worker, np.zeros(CODES_PER_PACKET, np.uint8), **fields)


def goodbye(lab: RackLab, worker: Worker) -> list[Sent]:
    packet = lab.job.hello(worker, 1)
    packet[Thc].remove_payload()
    packet[Thc].message_type = TYPES["goodbye"]
    packet[Thc].epoch = lab.job.epoch
    return lab.send(worker.switch_port, packet)


def test_workers_wait_for_the_root(lab: RackLab) -> None:
    (asked,) = lab.hello(lab.workers[0])
    assert lab.hello(lab.workers[1]) == [], "the root was asked just now"
    welcomes = lab.from_root(lab.welcome(asked))
    assert kinds(welcomes) == [(worker.endpoint, "welcome") for worker in lab.workers]


def test_hello_is_repeated_as_long_as_workers_repeat_theirs(lab: RackLab, caplog: pytest.LogCaptureFixture) -> None:
    nonces, told = set(), []
    for _ in range(12):
        *refusals, asked = lab.hello(lab.workers[0])
        nonces.add(hello_of(asked).nonce)
        told.append([Thc(datagram)[ThcError].reason for _, datagram in refusals])
        lab.target.pass_time(0.5)
    assert len(nonces) == 1
    assert told == [[]] * 7 + [[REASONS["racks_incomplete"]]] * 5, "for the worker's own error"
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert record.getMessage() == (
        f"job 1, rack 0, root {ROOT_IP}:{PORT}: no answer for 3 s; is thc-ps up, and can it reach the switch?"
    )
    assert kinds(lab.from_root(lab.welcome(asked))) == [(lab.workers[0].endpoint, "welcome")]


def test_a_root_that_takes_no_cookie_is_answered_once_for_each_hello(lab: RackLab) -> None:
    for cookie in (5, 6):
        (asked,) = lab.hello(lab.workers[0])
        challenge = lab.answer(Thc(asked[1]), "challenge") / ThcChallenge(cookie=cookie)
        (again,) = lab.from_root(challenge)
        assert (again[0], hello_of(again).cookie) == (ROOT, cookie)
        assert lab.from_root(challenge) == [], "an endless exchange as fast as packets travel"
        lab.target.pass_time(0.5)


@pytest.mark.parametrize(
    ("reason", "said", "told"),
    [
        ("config_mismatch", (ConfigField.SETTINGS, 0), (ConfigField.SETTINGS, 0)),
        ("config_mismatch", (ConfigField.SLOTS, 32), (ConfigField.SLOTS, 32)),
        ("config_mismatch", (ConfigField.GRANULARITY, 40), (ConfigField.GRANULARITY, 20)),
        ("config_mismatch", (ConfigField.NUM_WORKERS, 3), (ConfigField.NONE, 0)),
        ("too_many_jobs", (ConfigField.NONE, 0), (ConfigField.NONE, 0)),
        ("draining", (ConfigField.NONE, 0), (ConfigField.NONE, 0)),
    ],
)
def test_a_refusal_of_the_root_reaches_the_workers_that_wait(
    lab: RackLab, reason: str, said: tuple[int, int], told: tuple[int, int]
) -> None:
    (asked,) = lab.hello(lab.workers[0])
    lab.hello(lab.workers[1])
    refused = lab.from_root(error(lab, Thc(asked[1]), reason, field=said[0], job_value=said[1]))
    assert kinds(refused) == [(worker.endpoint, "error") for worker in lab.workers]
    for _, datagram in refused:
        found = Thc(datagram)[ThcError]
        assert (found.reason, found.field, found.job_value) == (REASONS[reason], *told)
    (again,) = lab.hello(lab.workers[0], nonce=7)
    assert hello_of(again).nonce != hello_of(asked).nonce, "a new attempt"


@pytest.mark.parametrize(("reason", "run", "bitmap"), [("duplicate_worker", 0, 0b1), ("other_training", 12, 0)])
def test_workers_are_told_when_the_root_insists(lab: RackLab, reason: str, run: int, bitmap: int) -> None:
    """The root takes a second to see that an earlier process of this leaf, or another training, is gone."""
    (asked,) = lab.hello(lab.workers[1], run=run)
    refusal = error(lab, Thc(asked[1]), reason, worker_bitmap=bitmap)
    for _ in range(6):
        assert lab.from_root(refusal) == []
        lab.target.pass_time(0.5)
        lab.hello(lab.workers[1], run=run)
    ((_, datagram),) = lab.from_root(refusal)
    found = Thc(datagram)[ThcError]
    assert found.reason == REASONS[reason]
    assert bitmap == 0 or found.worker_bitmap == 0b10


def reasons(sent: list[Sent]) -> list[int]:
    messages = [Thc(datagram) for _, datagram in sent]
    return [message[ThcError].reason for message in messages if ThcError in message]


def test_the_root_is_told_the_run_of_the_workers(lab: RackLab) -> None:
    (asked,) = lab.hello(lab.workers[0], run=11)
    assert hello_of(asked).run == 11
    assert reasons(lab.hello(lab.workers[1], run=12)) == [REASONS["other_training"]], "another one waits here"
    assert kinds(lab.from_root(lab.welcome(asked))) == [(lab.workers[0].endpoint, "welcome")]
    sent = lab.hello(lab.workers[1], run=12)
    assert sorted(kinds(sent)) == [(lab.workers[0].endpoint, "probe"), (lab.workers[1].endpoint, "error")]
    assert kinds(lab.hello(lab.workers[1], run=11)) == [(lab.workers[1].endpoint, "welcome")]


def test_the_training_of_the_root_gets_in_while_another_waits(lab: RackLab) -> None:
    (asked,) = lab.hello(lab.workers[1], run=12)
    lab.from_root(error(lab, Thc(asked[1]), "other_training"))
    (again,) = lab.hello(lab.workers[0], run=11)
    assert (hello_of(again).run, hello_of(again).nonce != hello_of(asked).nonce) == (11, True)
    assert reasons(lab.hello(lab.workers[1], run=12)) == [REASONS["other_training"]]
    assert kinds(lab.from_root(lab.welcome(again))) == [(lab.workers[0].endpoint, "welcome")]


def test_another_training_gets_the_rack_when_nobody_of_it_lives(lab: RackLab) -> None:
    (asked,) = lab.hello(lab.workers[0], run=11)
    lab.from_root(lab.welcome(asked))
    for _ in range(20):
        sent = lab.hello(lab.workers[0], nonce=5, run=12)
        if not reasons(sent):
            break
        assert reasons(sent) == [REASONS["other_training"]]
        lab.target.pass_time(0.2)
    (again,) = sent
    assert (hello_of(again).run, hello_of(again).nonce != hello_of(asked).nonce) == (12, True)


def test_the_job_has_the_slots_of_the_root(lab: RackLab) -> None:
    (asked,) = lab.hello(lab.workers[0])
    ((_, datagram),) = lab.from_root(lab.welcome(asked, slots=8, norm_slots=1, window_bytes=5000))
    welcome = Thc(datagram)[ThcWelcome]
    assert (welcome.slots, welcome.norm_slots, welcome.shards, welcome.codes_multiple) == (8, 1, 1, 1024)
    assert welcome.window_bytes == 2500, "a packet of codes of 4 bits is one of sums of 8 bits to the root"
    lab.job = lab.job.with_epoch(Thc(datagram).epoch)
    before = lab.target.status().reasons["malformed"]
    codes(lab, lab.workers[0], slot=7)
    assert lab.target.status().reasons["malformed"] == before
    codes(lab, lab.workers[0], slot=8)
    assert lab.target.status().reasons["malformed"] == before + 1


@pytest.mark.parametrize(
    ("shape", "field", "advice"),
    [
        ({"slots": 32, "norm_slots": 4}, ConfigField.SLOTS, "thc-ps --slots 16"),
        ({"norm_slots": 5}, ConfigField.SLOTS, "thc-ps --slots 16"),
        ({"shards": 4}, ConfigField.NONE, "--threads 1"),
        ({"codes_multiple": 3}, ConfigField.NONE, "use thc-ps as the root"),
    ],
    ids=str,
)
def test_a_root_whose_job_does_not_fit_the_switch(
    lab: RackLab, caplog: pytest.LogCaptureFixture, shape: dict[str, int], field: ConfigField, advice: str
) -> None:
    (asked,) = lab.hello(lab.workers[0])
    sent = lab.from_root(lab.welcome(asked, **shape))
    assert sorted(kinds(sent)) == sorted([(lab.workers[0].endpoint, "error"), (ROOT, "goodbye")])
    (refusal,) = [Thc(datagram)[ThcError] for to, datagram in sent if to != ROOT]
    assert (refusal.reason, refusal.field) == (REASONS["bad_config"], field)
    assert advice in caplog.text


def test_workers_must_agree_while_they_wait(lab: RackLab) -> None:
    lab.hello(lab.workers[0])
    other = lab.job.hello(lab.workers[1], 1)
    other[ThcHello].settings_hash ^= 1
    ((_, datagram),) = lab.send(lab.workers[1].switch_port, other)
    found = Thc(datagram)[ThcError]
    assert (found.reason, found.field) == (REASONS["config_mismatch"], ConfigField.SETTINGS)
    lab.target.pass_time(6.0)  # the earlier workers are gone
    (asked,) = lab.send(lab.workers[1].switch_port, other)
    assert asked[0] == ROOT


def test_answers_to_another_incarnation_are_dropped(lab: RackLab) -> None:
    (asked,) = lab.hello(lab.workers[0])
    for kind in ("welcome", "challenge", "error"):
        message = lab.welcome(asked)
        message.chunk ^= 1
        message.message_type = TYPES[kind]
        assert lab.from_root(message) == []
    for outside in ({"src_ip": "10.1.254.9"}, {"src_port": 1}):
        assert lab.from_root(lab.welcome(asked), **outside) == []
    assert kinds(lab.from_root(lab.welcome(asked))) == [(lab.workers[0].endpoint, "welcome")]
    assert lab.from_root(lab.welcome(asked)) == [], "a late copy"


@pytest.mark.parametrize(("reason", "told"), [("unknown_job", "unknown_job"), ("stale_epoch", "stale_epoch")])
def test_when_the_root_has_lost_the_job(lab: RackLab, reason: str, told: str) -> None:
    """Workers get the error that the root itself would send, and join anew."""
    lab.join()
    codes(lab, lab.workers[0])
    (up,) = codes(lab, lab.workers[1])
    late = error(lab, Thc(up[1]), reason)
    late.epoch ^= 1
    assert lab.from_root(late) == []
    (again,) = codes(lab, lab.workers[1], retransmit=True)
    assert again[0] == ROOT, "an error about an epoch of before ends nothing"
    assert lab.from_root(error(lab, Thc(up[1]), reason)) == []
    for worker in lab.workers:
        ((to, datagram),) = codes(lab, worker, retransmit=True)
        assert (to, Thc(datagram)[ThcError].reason) == (worker.endpoint, REASONS[told])
    before = lab.job.epoch
    lab.target.pass_time(0.2)
    assert lab.join().job.epoch != before
    (up,) = lab.push([np.zeros(CODES_PER_PACKET, np.uint8)] * 2)
    assert up[0] == ROOT, "no round of before is left"


def test_a_probe_is_answered_for_this_incarnation(lab: RackLab) -> None:
    probe = lab.root_job.header(lab.root_job.workers[0], "probe", code_bits=8)
    assert lab.from_root(probe) == []
    lab.join()
    ((to, datagram),) = lab.from_root(probe)
    assert to == ROOT
    assert datagram == bytes(lab.root_job.header(lab.root_job.workers[0], "alive", code_bits=8))
    probe.epoch ^= 1
    assert lab.from_root(probe) == []


def test_the_last_goodbye_of_a_rack_is_the_leafs(lab: RackLab) -> None:
    lab.join()
    assert goodbye(lab, lab.workers[0]) == []
    ((to, datagram),) = goodbye(lab, lab.workers[1])
    assert to == ROOT
    assert datagram == bytes(lab.root_job.header(lab.root_job.workers[0], "goodbye", code_bits=8))
    ((_, datagram),) = codes(lab, lab.workers[0])
    assert Thc(datagram)[ThcError].reason == REASONS["unknown_job"]


def test_a_restarted_worker_makes_the_leaf_join_anew(lab: RackLab) -> None:
    (first,) = lab.hello(lab.workers[0])
    lab.from_root(lab.welcome(first))
    lab.target.pass_time(2.0)
    (again,) = lab.hello(lab.workers[0], nonce=2)
    assert again[0] == ROOT, "and no GOODBYE: the root would hold the newcomer"
    assert hello_of(again).nonce != hello_of(first).nonce
    probe = lab.root_job.header(lab.root_job.workers[0], "probe", code_bits=8)
    assert lab.from_root(probe) == [], "the process of before is gone"
    welcome = lab.welcome(again)
    welcome.epoch = ROOT_EPOCH + 1
    assert kinds(lab.from_root(welcome)) == [(lab.workers[0].endpoint, "welcome")]


def restart_worker_0(lab: RackLab) -> Sent:
    """Its HELLO as another process; return the leaf's."""
    lab.target.pass_time(2.0)
    (asked,) = lab.hello(lab.workers[0], nonce=2)
    assert asked[0] == ROOT
    return asked


def reason_told(lab: RackLab, worker: Worker, **fields: int) -> int:
    """Return the reason in the answer to a worker's packet."""
    ((to, datagram),) = codes(lab, worker, **fields)
    assert to == worker.endpoint
    return int(Thc(datagram)[ThcError].reason)


@pytest.mark.parametrize("refused", [False, True])
def test_survivors_are_told_before_and_after_the_root_has_refused(lab: RackLab, refused: bool) -> None:
    """Nothing goes up for the incarnation of before."""
    lab.join()
    asked = restart_worker_0(lab)
    if refused:
        refusal = error(lab, Thc(asked[1]), "too_many_jobs")
        assert kinds(lab.from_root(refusal)) == [(lab.workers[0].endpoint, "error")]
    assert reason_told(lab, lab.workers[1]) == REASONS["stale_epoch"]


@pytest.mark.parametrize("why", ["refused", "stale_epoch"])
def test_a_rack_without_workers_takes_other_settings(lab: RackLab, why: str) -> None:
    lab.join()
    if why == "refused":
        lab.from_root(error(lab, Thc(restart_worker_0(lab)[1]), "config_mismatch", field=ConfigField.SETTINGS))
    else:
        codes(lab, lab.workers[0])
        (up,) = codes(lab, lab.workers[1])
        lab.from_root(error(lab, Thc(up[1]), "stale_epoch"))
    other = lab.job.hello(lab.workers[0], 3)
    other[ThcHello].settings_hash ^= 1
    (asked,) = lab.send(lab.workers[0].switch_port, other)
    assert asked[0] == ROOT


def test_a_leaf_that_cannot_be_closed_is_closed_at_the_next_hello(
    lab: RackLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> None:
        raise TransportError("no answer from the switch")

    lab.join()
    lab.target.pass_time(2.0)
    monkeypatch.setattr(lab.target.control, "apply", unreachable)
    with pytest.raises(TransportError):
        lab.hello(lab.workers[0], nonce=2)
    monkeypatch.undo()
    assert kinds(lab.hello(lab.workers[0], nonce=2)) == [(ROOT, "hello")]
    assert reason_told(lab, lab.workers[1]) == REASONS["stale_epoch"]


def test_a_worker_of_another_rack_is_not_taken(lab: RackLab) -> None:
    ((_, datagram),) = lab.send(
        lab.workers[0].switch_port, lab.job.hello(dataclasses.replace(lab.workers[0], worker_id=2), 1)
    )
    found = Thc(datagram)[ThcError]
    assert (found.reason, found.field) == (REASONS["bad_config"], ConfigField.WORKER_ID)
