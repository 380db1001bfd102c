"""A P4_16 model: compiles P4 programs to Python functions and runs packets through them.

`compile_program` reads a program for one of the architectures; `thc_p4_model.interfaces` describes its result.
"""

from thc_p4_model.compiler import compile_program
from thc_p4_model.interfaces import P4Error

__all__ = ["P4Error", "compile_program"]
