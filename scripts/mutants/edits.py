"""Small edits, described relative to the statement that a marker names.

A token is found whatever white space stands in it, so that a formatter does not move it away. Each edit returns the new text of
the statement, or raises `EditError` where the statement does not look as the edit expects.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from statements import condition


class EditError(Exception):
    """The marked statement is not what the edit expects."""


@dataclass(frozen=True)
class Edit:
    """What happens to the marked statement: `words` say it, `change` does it."""

    words: str
    change: Callable[[str], str]


def delete() -> Edit:
    """The statement is gone."""
    return Edit("delete the statement", lambda _: "")


def become(text: str) -> Edit:
    """Another statement stands in its place."""
    return Edit(f"becomes `{text}`", lambda _: text)


def never() -> Edit:
    """The condition of an `if`, `while` or `match` is false."""
    return Edit("the condition is never true", lambda statement: around(statement, "false && (", ")"))


def always() -> Edit:
    """The condition of an `if`, `while` or `match` is true."""
    return Edit("the condition is always true", lambda statement: around(statement, "true || (", ")"))


def replace(token: str, text: str) -> Edit:
    """One token, or a few, is another. It stands once in the statement."""
    return Edit(f"`{token}` becomes `{text}`", lambda statement: replaced(statement, token, text))


def drop(token: str) -> Edit:
    """One token, or a few, is gone."""
    return Edit(f"without `{token}`", lambda statement: replaced(statement, token, ""))


def around(statement: str, left: str, right: str) -> str:
    found = condition(statement)
    if found is None:
        raise EditError("has no `if`, `while` or `match` with a condition")
    start, end = found
    return f"{statement[:start]}{left}{statement[start:end].strip()}{right} {statement[end:]}"


def replaced(statement: str, token: str, text: str) -> str:
    found = list(re.finditer(pattern(token), statement))
    if len(found) != 1:
        raise EditError(f"has `{token}` {len(found)} times, expected once")
    return statement[: found[0].start()] + text + statement[found[0].end() :]


def pattern(token: str) -> str:
    """A token with any white space between its parts. A word is not found within another."""
    parts = re.findall(r"\w+|[^\w\s]", token)
    middle = r"\s*".join(re.escape(part) for part in parts)
    left = r"(?<!\w)" if parts[0][0].isalnum() or parts[0][0] == "_" else ""
    right = r"(?!\w)" if parts[-1][-1].isalnum() or parts[-1][-1] == "_" else ""
    return left + middle + right
