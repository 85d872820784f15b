"""The tool behind the pages: it runs blocks, writes what they print, and notices what is not true."""

from pathlib import Path

import pytest

from energyml import docgen, docpages

SPEC = """\
```energy file=a.energy
labels Tag = {A, B}
dim T
output y : Tag[T]
param u : real[Tag]
factor unary [t in T] (y[t]) = u
```
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    return tmp_path / "page.md"


def rewritten(page: Path, text: str) -> str:
    page.write_text(text, encoding="utf-8")
    return docgen.rewritten(page)


def test_outputs_are_written(page: Path) -> None:
    commands = "```console exact\n$ energyml check a.energy\nold\n```\n"
    code = "```python\nx = 1\n```\n\nwords\n\n```python\nprint(x + 1)\n```\n```text output\nold\n```\n"
    assert rewritten(page, SPEC + commands + code) == (
        SPEC + commands.replace("old", "a.energy: no errors") + code.replace("old", "2")
    )


def test_long_outputs_are_cut(page: Path) -> None:
    text = SPEC + "```console exact first=1\n$ energyml explain a.energy --stage model\n```\n"
    assert rewritten(page, text) == text.replace("model\n", "model\nlabels Tag = {'A', 'B'}\n...\n")


def test_what_is_not_exact_stays(page: Path) -> None:
    text = SPEC + "```console\n$ energyml check a.energy\nwhatever\n```\n"
    assert rewritten(page, text) == text


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        (["log Z 9.79698"], ["log Z 9.79699"], True),
        (["log Z 9.79698"], ["log Z 9.9"], False),
        (["gap 1.9e-06"], ["gap 2.5e-06"], True),
        (["2 answers"], ["3 answers"], False),
        (["a 1.0"], ["b 1.0"], False),
        (["a 1.0"], ["a 1.0", "b"], False),
    ],
)
def test_near_numbers(old: list[str], new: list[str], same: bool) -> None:
    assert docpages.close(old, new) is same


def test_near_outputs_stay(page: Path) -> None:
    text = "```python\nprint('x', 2.00001)\n```\n```text output near\nx 2.0\n```\n"
    assert rewritten(page, text) == text
    assert "x 2.00001" in rewritten(page, text.replace("x 2.0\n", "x 3.0\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SPEC.replace("u\n```", "v\n```"), "E0102"),
        (SPEC.replace("energy file", "energy bad file"), "expected an error"),
        (SPEC.replace("energy file=a.energy", "energy bad=E0209").replace("= u", "= v"), "expected E0209, found E0102"),
        ("```energy part=a\ndim T\n```\n", "E0112"),
        ("```console\n$ ls\n```\n", "use a `sh` block"),
        ("```console\n$ energyml check nowhere.energy\n```\n", "ended with 2"),
        ("```python\n1 / 0\n```\n", "page.md:1: ZeroDivisionError"),
        ("```python fails=E0102\nx = 1\n```\n", "nothing was raised"),
        ("```python fails=E0209\nimport energyml as em\nem.compile('dim T')\n```\n", "E0112"),
        ("```python\nx = 1\n", "never closed"),
        ("<!-- generated: nonsense -->\n<!-- end generated -->\n", "no generated part is called `nonsense`"),
    ],
)
def test_what_is_not_true_is_noticed(page: Path, text: str, message: str) -> None:
    with pytest.raises(docpages.PageError, match=message):
        rewritten(page, text)


def test_an_expected_error_is_fine(page: Path) -> None:
    text = "```python fails=E0112\nimport energyml as em\nem.compile('dim T')\n```\n"
    assert rewritten(page, text) == text


def test_parts_are_checked_together(page: Path) -> None:
    first, rest = SPEC.split("dim T\n")
    opening = first.replace("file=a.energy", "part=a")
    text = f"{opening}```\n\n```energy part=a\ndim T\n{rest}"
    assert rewritten(page, text) == text


def test_the_command_line(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page.write_text("# Title\n\n<!-- generated: schemes -->\n<!-- end generated -->\n", encoding="utf-8")
    assert docgen.main(["--check", str(page)]) == 1
    assert "differs" in capsys.readouterr().out
    assert docgen.main([str(page)]) == 0
    assert "| `bioes` |" in page.read_text(encoding="utf-8")
    assert docgen.main(["--check", str(page)]) == 0
    assert docgen.main([str(page.with_name("none.md"))]) == 1
    assert "docgen: " in capsys.readouterr().err


def test_tables_escape_bars() -> None:
    assert docgen.table(("a",), [("|Tag|",)]).splitlines()[-1] == "| \\|Tag\\| |"
