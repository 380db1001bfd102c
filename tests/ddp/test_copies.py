"""Copies of compressed models average as plain DDP does, and say so; the default device may be any."""

import ast
from pathlib import Path

import torch
from reports import Reports, reports_of

PACKAGE = Path(__file__).parents[2] / "byteps_thc"
#: Functions of torch that make tensors on the default device.
FACTORIES = {
    *("arange", "as_tensor", "asarray", "empty", "empty_strided", "eye", "full", "linspace", "logspace", "ones"),
    *("rand", "randint", "randn", "randperm", "scalar_tensor", "tensor", "zeros"),
}


reports = reports_of(Path(__file__).with_name("copies_rank.py"), 2)


def test_copies_average_exactly_and_say_so_once(reports: Reports) -> None:
    for rank, report in enumerate(report["copies"] for report in reports):
        for name, average in report["copies"].items():
            torch.testing.assert_close(average, report["exact"], msg=name)
        assert report["warnings of none"] == report["warnings of saving"] == []
        assert ["does not compress" in line for line in report["warnings"]] == [True] * (rank == 0)


def test_the_original_compresses_on(reports: Reports) -> None:
    first, second = (report["copies"] for report in reports)
    for step in ("before", "after"):
        assert torch.equal(first[step], second[step])
        error = (first[step] - first["exact"]).square().sum() / first["exact"].square().sum()
        assert 0 < error < 0.02
    assert first["type"]


def test_the_default_device_may_be_another(reports: Reports) -> None:
    for report in (report["devices"] for report in reports):
        for name, average in report.items():
            assert (average - report["exact"]).square().sum() < 0.03 * report["exact"].square().sum(), name


def test_every_tensor_of_the_package_names_its_device() -> None:
    without = [
        f"{path.relative_to(PACKAGE)}:{call.lineno}"
        for path in PACKAGE.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == "torch"
        and call.func.attr in FACTORIES
        and not any(keyword.arg == "device" for keyword in call.keywords)
    ]
    assert not without
