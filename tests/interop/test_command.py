"""`energyml uai`: the competition's format, and misuse: a message, the right exit code, never a traceback."""

import json
from pathlib import Path

import pytest

from energyml import cli

ROOT = Path(__file__).resolve().parents[2]
ALARM = ROOT / "examples" / "alarm.uai"
EVIDENCE = ROOT / "examples" / "alarm.uai.evid"


@pytest.fixture
def energyml(monkeypatch, capsys):
    """Run a command in this process: exit code, standard output, standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["energyml", *map(str, arguments)])
        code = cli._guarded(cli.app)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err + captured.out
        return code, captured.out, captured.err

    return run


@pytest.fixture
def uai(energyml):
    """Run `energyml uai`."""

    def run(*arguments: object, backend: str | None = "enumerate") -> tuple[int, str, str]:
        return energyml("uai", *arguments, *(["--infer", backend] if backend else []))

    return run


def test_partition(uai):
    assert uai(ALARM) == (0, "PR\n0\n", "") or float(uai(ALARM)[1].split()[1]) == pytest.approx(0, abs=1e-12)
    code, out, err = uai(ALARM, "--evid", EVIDENCE, "--query", "PR")
    word, value = out.splitlines()
    assert (code, word, err) == (0, "PR", "")
    assert 10 ** float(value) == pytest.approx(0.00208410018578)


def test_marginals(uai):
    code, out, _ = uai(ALARM, "--evid", EVIDENCE, "--query", "MAR")
    word, line = out.splitlines()
    numbers = line.split()
    assert (code, word, numbers[0], numbers[1::3]) == (0, "MAR", "5", ["2"] * 5)
    assert float(numbers[3]) == pytest.approx(0.284171835)  # a burglary, when both neighbours call
    assert numbers[-2:] == ["0", "1"]


@pytest.mark.parametrize("query", ["MAP", "MPE", "map"])
def test_best(uai, query):
    assert uai(ALARM, "--evid", EVIDENCE, "--query", query) == (0, f"{query.upper()}\n5 0 0 1 1 1\n", "")


def test_several_samples(uai, tmp_path):
    evid = tmp_path / "two.evid"
    evid.write_text("2\n2 3 1 4 1\n0\n")
    code, out, _ = uai(ALARM, "--evid", evid, "--query", "MAP")
    assert (code, out) == (0, "MAP\n2\n5 0 0 1 1 1\n5 0 0 0 0 0\n")


def test_libdai(uai, tmp_path):
    path = tmp_path / "one.fg"
    path.write_text("1\n1\n3\n2\n1\n1 100\n")
    assert uai(path) == (0, "PR\n2\n", "")
    assert uai(path, "--query", "MAP") == (0, "MAP\n1 1\n", "")


def test_misuse(uai, tmp_path):
    bad = tmp_path / "bad.uai"
    bad.write_text("MARKOV\n2\n2 2\n1\n2 0 2\n")
    evid = tmp_path / "bad.evid"
    evid.write_text("1 7 0\n")
    zero = tmp_path / "zero.uai"
    zero.write_text("MARKOV\n1\n2\n1\n1 0\n2\n0 0\n")
    code, out, err = uai(bad)
    assert (code, out) == (1, "") and "E0704" in err and "bad.uai:5:5" in err
    code, out, err = uai(ALARM, "--evid", evid)
    assert (code, out) == (1, "") and "E0704" in err and "bad.evid:1:3" in err
    code, out, err = uai(tmp_path / "missing.uai")
    assert (code, out) == (2, "") and "no such file" in err
    code, out, err = uai(ALARM, "--evid", tmp_path / "missing.evid")
    assert (code, out) == (2, "") and "no such file" in err
    code, out, err = uai(ALARM, "--query", "ZZ")
    assert (code, out) == (2, "") and "PR, MAR, MAP, MPE" in err
    code, out, err = uai(ALARM, backend="enumarate")
    assert (code, out) == (1, "") and "did you mean `enumerate`" in err
    code, out, err = uai(ALARM, backend="enumerate(limit: 3)")
    assert (code, out) == (1, "") and "limit is 3" in err
    assert uai(zero) == (0, "PR\n-inf\n", "")
    code, out, err = uai(zero, "--query", "MAR")
    assert (code, out) == (1, "") and "weight 0" in err and "evidence" not in err


def test_samples_that_are_impossible_are_named(uai, tmp_path):
    (tmp_path / "same.uai").write_text("MARKOV\n2\n2 2\n1\n2 0 1\n4\n1 0 0 1\n")
    (tmp_path / "some.evid").write_text("2\n1 0 0\n2 0 0 1 1\n")
    given = tmp_path / "same.uai", "--evid", tmp_path / "some.evid"
    assert uai(*given)[1] == "PR\n2\n0\n-inf\n"
    for query in ("MAR", "MAP"):
        code, out, err = uai(*given, "--query", query)
        assert (code, out) == (1, "") and "some.evid: sample 2 of 2: under this evidence" in err
    code, out, _ = uai(tmp_path / "same.uai", "--query", "MAR", backend="bp")
    assert (code, out) == (0, "MAR\n2 2 0.5 0.5 2 0.5 0.5\n")


THIRD_PARTY = Path(__file__).parents[3] / "shared" / "thirdparty" / "uai"


@pytest.mark.parametrize(("query", "backend"), [("PR", "mean_field"), ("PR", "ais"), ("PR", "bridge"), ("MAP", "bp")])
def test_only_exact_answers_say_impossible(uai, tmp_path, query, backend):
    zero = tmp_path / "zero.uai"
    zero.write_text("MARKOV\n2\n2 2\n2\n2 0 1\n2 0 1\n4\n1 0 0 1\n4\n0 1 1 0\n")
    code, out, err = uai(zero, "--query", query, backend=backend)
    assert (code, out) == (1, "")
    assert "of positive weight" in err and "`exact`" in err and "every answer" not in err
    code, out, err = uai(zero, "--query", query, backend="exact")
    assert (code, out) == (0, "PR\n-inf\n") if query == "PR" else "every answer has the weight 0" in err


@pytest.mark.skipif(not THIRD_PARTY.is_dir(), reason="the models of the UAI competition are not here")
@pytest.mark.parametrize(("query", "backend"), [("MAP", "bp"), ("MAP", "mean_field"), ("PR", "mean_field")])
def test_a_search_that_fails_on_a_pedigree_proves_nothing(uai, query, backend):
    model = THIRD_PARTY / "Pedigree_13.uai"
    code, out, err = uai(model, "--evid", f"{model}.evid", "--query", query, backend=backend)
    assert (code, out) == (1, "") and "does not prove that there is none" in err


@pytest.mark.parametrize(
    ("backend", "query", "said"),
    [
        ("exact", "PR", ""),
        ("bp", "PR", "PR by `bp` is an estimate"),
        ("mean_field", "PR", "PR by `mean_field` is a lower bound"),
        ("trw", "PR", "PR by `trw` is an upper bound"),
        ("bp", "MAR", "MAR by `bp` is an estimate"),
        ("bp", "MAP", "a better answer may exist"),
    ],
)
def test_bounds_and_estimates_are_called_so(uai, tmp_path, backend, query, said):
    path = tmp_path / "pair.uai"
    path.write_text("MARKOV\n2\n2 2\n1\n2 0 1\n4\n4 2 1 3\n")
    code, out, err = uai(path, "--query", query, backend=backend)
    assert code == 0 and out.startswith(query) and said in err and bool(err) == bool(said)


@pytest.fixture
def wide(tmp_path):
    """A graph of 80 cells that are all neighbours: too wide for elimination, and 1.2e24 answers."""
    size = 80
    pairs = [(i, j) for i in range(size) for j in range(i)]
    lines = ["MARKOV", size, " ".join(["2"] * size), len(pairs), *(f"2 {i} {j}" for i, j in pairs)]
    path = tmp_path / "wide.uai"
    path.write_text("\n".join(map(str, [*lines, *(["4 1 1 1 1.001"] * len(pairs))])))
    return path


@pytest.mark.parametrize("query", ["PR", "MAR", "MAP"])
def test_auto_goes_on_where_exact_is_refused_and_says_so(uai, wide, query):
    code, out, err = uai(wide, "--query", query, backend="auto")
    assert code == 0 and out.startswith(query)
    assert "auto chose `bp`" in err and "`exact` cannot eliminate" in err and "not exact" in err


def test_explain_reads_the_models_that_a_refusal_sends_there(energyml, wide):
    code, out, err = energyml("explain", wide)
    assert (code, err) == (0, "") and "cannot: every order has a width above" in out
    assert "\n  bp                can answer estimate: log_partition" in out
    code, out, err = energyml("explain", ALARM, "--stage", "plan")
    assert (code, err) == (0, "") and "induced width: 2" in out
    assert json.loads(energyml("info", ALARM)[1])["backends"]["exact"]["serves"]


def test_exact_is_the_default(uai):
    assert uai(ALARM, "--evid", EVIDENCE, "--query", "MAP", backend=None) == (0, "MAP\n5 0 0 1 1 1\n", "")
    code, out, _ = uai(ALARM, "--evid", EVIDENCE, backend=None)
    assert code == 0 and 10 ** float(out.split()[1]) == pytest.approx(0.00208410018578)


@pytest.mark.parametrize("query", ["PR", "MAR", "MAP"])
def test_a_model_that_is_too_wide_is_refused(uai, tmp_path, query):
    size = 80
    pairs = [(i, j) for i in range(size) for j in range(i)]
    lines = ["MARKOV", size, " ".join(["2"] * size), len(pairs), *(f"2 {i} {j}" for i, j in pairs)]
    path = tmp_path / "wide.uai"
    path.write_text("\n".join(map(str, [*lines, *(["4 1 2 2 1"] * len(pairs))])))
    code, out, err = uai(path, "--query", query, backend=None)
    assert (code, out) == (1, "") and err.startswith("energyml: ") and "width" in err
