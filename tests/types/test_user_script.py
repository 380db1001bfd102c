"""Type checkers and editors see the settings: mypy --strict finds the wrong lines of a user's script, and no others."""

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from pydantic import BaseModel

from byteps_thc import CompressionPolicy, NetworkConfig, ServerCodes, Session
from byteps_thc._net.session import NetworkSettings
from byteps_thc._scheme.adding.server_codes import CodesBesideTable
from byteps_thc._scheme.decoding.settings import RankCodes, RankKeywords
from byteps_thc.torch.settings import ThcCompression

SCRIPT = Path(__file__).with_name("user_script.py")
#: torch is skipped, because mypy takes minutes for it: its classes are Any then.
CONFIGURATION = "[mypy]\nstrict = True\n[mypy-torch.*]\nfollow_imports = skip\n"


def test_mypy_finds_the_wrong_lines_and_no_others(tmp_path: Path) -> None:
    configuration = tmp_path / "mypy.ini"
    configuration.write_text(CONFIGURATION, encoding="utf-8")
    script = tmp_path / SCRIPT.name
    script.write_text(SCRIPT.read_text(encoding="utf-8"), encoding="utf-8")
    command = [sys.executable, "-P", "-m", "mypy", "--config-file", str(configuration), script.name]
    # In a folder without byteps_thc, so that mypy reads the installed package.
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    found = {int(line) for line in re.findall(rf"^{script.name}:(\d+): error", result.stdout, re.MULTILINE)}
    lines = enumerate(SCRIPT.read_text(encoding="utf-8").splitlines(), 1)
    wrong = {number for number, line in lines if line.endswith("# wrong")}
    assert len(wrong) > 20
    assert found == wrong, result.stdout + result.stderr


@pytest.mark.parametrize("model", [ServerCodes, CompressionPolicy], ids=lambda m: m.__name__)
def test_signatures_name_every_setting(model: type[BaseModel]) -> None:
    parameters = inspect.signature(model).parameters
    assert list(parameters) == list(model.model_fields)
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters.values())


@pytest.mark.parametrize("model", [NetworkConfig, Session, ThcCompression], ids=lambda m: m.__name__)
def test_network_settings_are_keywords_wherever_there_is_a_network(model: type[NetworkSettings]) -> None:
    listed = inspect.signature(NetworkSettings).parameters
    signature = inspect.signature(model).parameters
    assert {name: signature[name].default for name in listed} == {name: listed[name].default for name in listed}
    assert all(signature[name].kind is inspect.Parameter.KEYWORD_ONLY for name in listed)


def test_keywords_are_the_fields_of_codes() -> None:
    """The lists are written by hand; types must agree but for limits and conversions of pydantic."""
    assert get_type_hints(RankKeywords) == _types(RankCodes)
    fixed = {"bits", "granularity", "p", "rounding"}  # by paper()
    assert get_type_hints(CodesBesideTable) == {k: v for k, v in _types(ServerCodes).items() if k not in fixed}


def _types(model: type[BaseModel]) -> dict[str, Any]:
    hints = get_type_hints(model)
    return {name: hints[name] for name in model.model_fields}
