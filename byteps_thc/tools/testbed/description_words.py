"""Types of the words of a description: what may be in a name, a path, an argument.

Words reach command lines, scripts for Slurm and Kubernetes, and paths below /sys, on hosts where root reads them. They
are quoted there; these patterns are the second fence, and keep a word from being an option or another path.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field


def _refuse_dots(path: str) -> str:
    if {".", ".."} & set(path.split("/")):
        raise ValueError(f"{path!r} has . or .. in it; write the path without them")
    return path


HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?$")]
PciAddress = Annotated[str, Field(pattern=r"^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")]
#: [USER@]HOST, where HOST is a name, an address, or a Host of ~/.ssh/config, whose ProxyCommand may have it in it.
SshTarget = Annotated[str, Field(pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.@+-]*@)?[A-Za-z0-9_][A-Za-z0-9_.:-]*$")]
#: As EAL's --lcores takes them.
CoreList = Annotated[str, Field(pattern=r"^[0-9(][0-9(),@-]*$")]
#: An absolute path of plain characters: without tilde, blanks, ".", ".." and what separates paths.
PlainPath = Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._+@=-]+)+$"), AfterValidator(_refuse_dots)]
#: A path for the working folder of a process, which is never part of a command.
FolderPath = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$")]
#: A word of a command that the user gives; lines of a script, too.
CommandWord = Annotated[str, Field(pattern=r"^[^\x00]*$")]
#: An argument of one of our programs.
Argument = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$")]
#: The same, without blanks.
EalArgument = Annotated[str, Field(pattern=r"^[^\s\x00-\x1f\x7f]+$")]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,252}$")]
#: One line: files of variables have one for each.
VariableValue = Annotated[str, Field(pattern=r"^[^\x00\n\r]*$")]
#: Of a partition or an account of Slurm: a line that begins with #SBATCH.
SlurmName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.,:@+-]*$")]
SlurmTime = Annotated[str, Field(pattern=r"^[0-9][0-9:-]*$")]
ImageName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$", max_length=512)]
