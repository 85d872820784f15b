"""Networks of other shapes: Table 2 (windows), Figure 1 (hidden sizes), Tables 4 and 5 ("+" and two layers).

    python -m benchmarks.approximate_inference.variants pos --root DATA [--vectors FILE]

All networks of a study are fitted to one energy and compared on the validation data ("+": on the test data), as the
paper does.  Results are kept in results/variants-TASK-SEED.json; the report shows them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence

import energyml as em
from benchmarks.approximate_inference.tagging import (
    ARCHITECTURES,
    LOCAL,
    RESULTS,
    TASKS,
    Task,
    parsed,
    prepare,
    trained,
    vectors_of,
)

SIZES = (25, 50, 100, 200)
CHARACTERS = "labels Char from data(unknown: '<unk>')\nlabels Tag from data\ndim T\ndim M[T]\ninput char : Char[T, M]\n"


def networks(task: Task) -> dict[str, tuple[str, list[str]]]:
    """By study: the split on which its networks are compared, and the networks."""
    windows = [
        f"infnet(cnn(hidden: {task.hidden}, width: {width}){local})" for width in (3, 5) for local in ("", f", {LOCAL}")
    ]
    sizes = [f"infnet({one}(hidden: {size}))" for one in ARCHITECTURES for size in SIZES]
    shapes = [
        f"cnn(hidden: {task.hidden})",
        f"blstm(hidden: {task.hidden})",
        f"blstm(hidden: {task.hidden}, layers: 2)",
    ]
    plus = [f"infnet({one}, plus: true{local})" for one in shapes for local in ("", f", {LOCAL}")]
    return {"windows": ("validation", windows), "sizes": ("validation", sizes), "plus": ("test", plus)}


def spec_of(study: str, task: Task, chosen: Sequence[str], options: argparse.Namespace) -> str:
    """The spec of a study; "+" reads characters, and its energy too."""
    spec = task.spec(chosen, vectors_of(options), options.lr)
    if study == "plus":
        spec = spec.replace("labels Tag from data\ndim T\n", CHARACTERS)
        spec = spec.replace(
            "net scores = blstm(", "net scores = chars_words(char_body: cnn, chars: 30, char_embed: 30, "
        )
        spec = spec.replace(f"hidden: {task.hidden}, embed", f"hidden: {task.hidden}, layers: 1, words", 1)
        spec = spec.replace("= scores(word)[t]", "= scores(char, word)[t]")
    return spec


def main(arguments: Sequence[str] | None = None) -> None:
    options = parsed(__doc__, arguments)
    task = TASKS[options.task]
    folder = options.runs / task.name
    prepare(task, options.root, folder / "data")
    kept = RESULTS / f"variants-{task.name}-{options.seed}.json"
    record = (
        json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {"task": task.name, "seed": options.seed}
    )
    for study, (split, chosen) in networks(task).items():
        if study in record:
            continue
        out = folder / f"{study}{options.seed}"
        trained(task, spec_of(study, task, chosen, options), out, options)
        found = em.compare(
            out, ["exact", *chosen], root=folder / "data", split=split, repeats=options.repeats, limit=task.examples
        )
        print(found)
        record |= {"date": time.strftime("%Y-%m-%d"), study: {"split": split, **found.plain(), "model": out.name}}
        kept.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
