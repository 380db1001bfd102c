"""Imported first by what is of no use without PyTorch: the error says what to install."""

from importlib.util import find_spec

from byteps_thc.built import explain

if find_spec("torch") is None:
    raise explain(ModuleNotFoundError("No module named 'torch'", name="torch"))
