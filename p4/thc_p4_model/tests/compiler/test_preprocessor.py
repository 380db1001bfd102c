from pathlib import Path

import pytest

from thc_p4_model.compiler.preprocessor import Preprocessor, SourceText
from thc_p4_model.interfaces import P4Error


def run(folder: Path, text: str, **defines: str) -> SourceText:
    (folder / "main.p4").write_text(text)
    return Preprocessor([folder / "include"], defines).run(folder / "main.p4")


@pytest.mark.parametrize(
    ("source", "expanded"),
    [
        ("#define N 4\nbit<N> a;", "bit<4> a;"),
        ("#define ADD(a, b) a + b\nADD(1, (2, 3))", "1 + (2, 3)"),
        ("#define FIELD(i) field_##i\nFIELD(7)", "field_7"),
        ("#define NAME(x) #x\nNAME(a.b)", '"a.b"'),
        ("#define A B\n#define B A\nA", "A"),
        ("#define TWICE(M, x) M(x) M(x)\n#define ONE(x) <x>\nTWICE(ONE, 5)", "<5> <5>"),
        ("#define F(x) x\nF(\n  1\n)", "1"),
        ("#define LONG a \\\n  b\nLONG", "a    b"),
        ('#define N 1\n"N" // N', '"N"'),
        ("#define N 1\n#undef N\nN", "N"),
        ("#define ALL(...) f(__VA_ARGS__)\nALL(1, 2)", "f(1,2)"),
        ("#if 1 + 2 == 3 && !defined(X)\nyes\n#else\nno\n#endif", "yes"),
        ("#ifdef X\n#if 1\na\n#endif\n#elif 0x10 > 15\nb\n#else\nc\n#endif", "b"),
        ("#ifndef X\n#error wrong\n#endif\nX", "X"),
        ("@pragma stage 3", "@stage(3)"),
        ("a /* b\nc */ d", "a  d"),
        ("#define A /* of\ntwo lines */ 3\nA", "3"),
        ('#define N 1\n@a("\n  // N\n  /* N\n#define N 2\n") N', '@a("\n  // N\n  /* N\n#define N 2\n") 1'),
        ('#define F(x) x\nF(\n"a\n)b")', '"a\n)b"'),
        ('"a\\\nb" "c\\\\" // d', '"ab" "c\\\\"'),
        ('#if 0\nhe said "no\n#else\n"yes"\n#endif', '"yes"'),
        ('#warning "no\n"yes"', '"yes"'),
    ],
)
def test_expansion(tmp_path: Path, source: str, expanded: str) -> None:
    defines = {"X": "X"} if "#error" in source else {}
    assert run(tmp_path, source, **defines).text.split() == expanded.split()


def test_lines_know_where_they_came_from(tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "a.p4").write_text("// nothing\none\n")
    source = run(tmp_path, "#define X three\n#include <a.p4>\n\nX\n")
    where = {line: source.origin(number) for number, line in enumerate(source.text.splitlines(), 1) if line.strip()}
    assert {line: (Path(at.path).name, at.line) for line, at in where.items()} == {
        "one": ("a.p4", 2),
        "three": ("main.p4", 4),
    }


def test_lines_behind_strings_and_comments_know_where_they_came_from(tmp_path: Path) -> None:
    text = '#define F(x) x\none "a\nb" two\nthree\n"\\\n\n" four /*\n\n*/ five\nF(\n"\n"\n) six\nseven\n'
    source = run(tmp_path, text)
    lines = source.text.splitlines()
    names = ("one", "two", "three", "four", "five", "six", "seven")
    where = {name: source.origin(number).line for name in names for number, line in enumerate(lines, 1) if name in line}
    assert where == {"one": 2, "two": 3, "three": 4, "four": 7, "five": 9, "six": 12, "seven": 14}


def test_include_guards(tmp_path: Path) -> None:
    (tmp_path / "a.p4").write_text('#ifndef A\n#define A\nonce\n#include "a.p4"\n#endif\n')
    assert run(tmp_path, '#include "a.p4"\n#include "a.p4"\n').text.split() == ["once"]


@pytest.mark.parametrize(
    ("source", "line", "message"),
    [
        ("\n#error two lines", 2, "two lines"),
        ("#include <nowhere.p4>", 1, "cannot find nowhere.p4"),
        ('#include "main.p4"', 1, "include itself"),
        ("#if 1\n", 1, "without #endif"),
        ("\n#endif", 2, "#endif without #if"),
        ("#if 1 +\n#endif", 1, "incomplete"),
        ("#if 1/0\n#endif", 1, "zero"),
        ("#define F(a) a\nF(1, 2)", 2, "takes 1 arguments, not 2"),
        ("#define F(a) a\nF(1", 2, "closing parenthesis"),
        ("#frobnicate", 1, "unknown directive"),
        ("a\n/* b", 2, "comment without its end"),
    ],
)
def test_errors_say_where(tmp_path: Path, source: str, line: int, message: str) -> None:
    with pytest.raises(P4Error, match=message) as error:
        run(tmp_path, source)
    assert (Path(error.value.path).name, error.value.line) == ("main.p4", line)


def test_text_in_another_encoding(tmp_path: Path) -> None:
    path = tmp_path / "program.p4"
    path.write_bytes("// Größe\n// café\n".encode() + "// café\n".encode("latin-1"))
    with pytest.raises(P4Error, match=r"program\.p4:3: byte 0xe9 is not UTF-8"):
        Preprocessor([], {}).run(path)
