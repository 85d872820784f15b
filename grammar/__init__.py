"""The grammar as data: the `.lark` file, the parser made from it, and its words.

`tables.json` holds the LALR tables of `energyml.lark`, so that a command starts without building them.  It carries the
grammar's fingerprint: after an edit the parser is built from the `.lark` file, and `make docs` writes the tables again.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from lark import Lark

GRAMMAR = Path(__file__).with_name("energyml.lark")
TABLES = Path(__file__).with_name("tables.json")
STARTS = ["statements", "choices", "value"]

STATEMENT_WORDS = (
    "labels", "dim", "input", "output", "latent", "field", "net", "param", "let", "factor", "chain", "gaussian",
    "sequence", "masked", "score", "forbid", "scheme", "infer", "decode", "train", "data", "include",
)  # fmt: skip
SOFT_WORDS = ("FROM", "FREE", "IN", "OVER", "ARGMAX", "THEN", "AND")


def build_parser(postlex: Any) -> Lark:
    """Build the parser from the `.lark` file (about 0.2 s)."""
    return Lark(
        GRAMMAR.read_text(encoding="utf-8"),
        parser="lalr",
        lexer="basic",
        start=STARTS,
        postlex=postlex,
        propagate_positions=True,
        maybe_placeholders=True,
    )


def load_parser(postlex: Any) -> Lark:
    """The parser from its prepared tables (about 10 ms), or built anew when they are missing or stale."""
    try:
        tables = json.loads(TABLES.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return build_parser(postlex)
    if tables.get("fingerprint") != fingerprint():
        return build_parser(postlex)
    data, memo = tables["data"], _whole_keys(tables["memo"])
    lalr = data["parser"]["parser"]
    lalr["states"] = _whole_keys(lalr["states"])
    loaded: Lark = Lark._load_from_dict(data, memo, postlex=postlex)  # type: ignore[no-untyped-call]
    return loaded


def write_tables(postlex: Any) -> None:
    """Write the tables of the current grammar."""
    from lark.grammar import Rule
    from lark.lexer import TerminalDef

    data, memo = build_parser(postlex).memo_serialize([TerminalDef, Rule])
    data["options"]["postlex"] = None
    text = json.dumps({"fingerprint": fingerprint(), "data": data, "memo": memo}, sort_keys=True)
    TABLES.write_text(text + "\n", encoding="utf-8")


def fingerprint() -> str:
    """What the tables were made from: the grammar's text and Lark's version."""
    import lark

    made_from = GRAMMAR.read_text(encoding="utf-8") + lark.__version__
    return hashlib.sha256(made_from.encode()).hexdigest()


def tables_are_fresh() -> bool:
    """Whether the prepared tables belong to the current grammar."""
    try:
        found = json.loads(TABLES.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(found.get("fingerprint") == fingerprint())


def _whole_keys(table: dict[str, Any]) -> dict[int, Any]:
    return {int(key): value for key, value in table.items()}
