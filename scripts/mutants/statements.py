"""As much of Rust's grammar as it takes to find the statement that begins on a line, and the condition in it."""

from __future__ import annotations

import re

#: What is no code: comments, strings (plain and raw), characters. A lifetime is no character.
TEXT = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)|b?r(?P<hashes>\#*)".*?"(?P=hashes)|b?"(?:\\.|[^"\\])*"|b?'(?:\\[^\n]+?|[^'\\\n])'""",
    re.DOTALL,
)
OPENING, CLOSING = "([{", ")]}"
#: A statement that begins so ends with its last block.
BLOCK = re.compile(r"(?:if|match|while|for|loop|unsafe)\b")
CONDITION = re.compile(r"\b(?:if|while|match)\b")


def without_comments(source: str) -> str:
    """The source with blanks for comments: all else stays where it is."""
    return TEXT.sub(lambda found: blank(found[0]) if found["comment"] else found[0], source)


def bare(source: str) -> str:
    """The source with blanks for comments, strings and characters."""
    return TEXT.sub(lambda found: blank(found[0]), source)


def blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def end_of_statement(source: str, start: int) -> int:
    """Where the statement ends that begins at `start`: after its semicolon or its last block, or before the comma or the bracket
    that ends the list or the block in which it is an expression. A match arm is one from its pattern on."""
    code = bare(source)
    blocks = bool(BLOCK.match(code, start))
    opened: list[int] = []
    for at in range(start, len(code)):
        char = code[at]
        if char in OPENING:
            opened.append(at)
        elif char in CLOSING:
            if not opened:
                return len(code[:at].rstrip())
            began = opened.pop()
            of_arm = code[:began].rstrip().endswith("=>")
            if char == "}" and not opened and (blocks or of_arm) and not goes_on(code, at + 1):
                return at + 1
        elif not opened and char == ";":
            return at + 1
        elif not opened and char == ",":
            return at
    return len(code)


def goes_on(code: str, at: int) -> bool:
    """Whether the expression that ended in a block has more: another branch, a method, an operator."""
    return bool(re.match(r"\s*(?:else\b|[.?;])", code[at:]))


def condition(statement: str) -> tuple[int, int] | None:
    """Where the first condition stands: between `if`, `while` or `match` and its block, or the arrow of a guarded arm."""
    code = bare(statement)
    keyword = CONDITION.search(code)
    if keyword is None or re.match(r"\s*let\b", code[keyword.end() :]):
        return None
    depth = 0
    for at in range(keyword.end(), len(code)):
        if depth == 0 and (code[at] == "{" or code.startswith("=>", at)):
            return keyword.end() + 1, at
        depth += (code[at] in OPENING) - (code[at] in CLOSING)
    return None
