"""Signatures with types; those of compiled classes are in their stubs."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from pathlib import Path
from typing import Any

import memcfg

WIDEST = 72  # letters of a signature on one line


def signature(value: Any, name: str) -> str:
    """Return a function or class with its parameters; empty if there are none."""
    stub = stubs().get(getattr(value, "__qualname__", ""))
    if stub is not None and not hasattr(value, "__code__"):
        return laid_out(name, *stub)
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return name if inspect.isclass(value) else f"{name}(…)"
    parameters = [*found.parameters.values()]
    if parameters and parameters[0].name in ("self", "cls"):
        del parameters[0]
    words: list[str] = []
    kinds = [each.kind for each in parameters]
    for each in parameters:
        named_only = each.kind is each.KEYWORD_ONLY
        if named_only and "*" not in words and each.VAR_POSITIONAL not in kinds:
            words.append("*")
        words.append(parameter(each))
    positional = sum(kind is inspect.Parameter.POSITIONAL_ONLY for kind in kinds)
    if positional:
        words.insert(positional, "/")
    result = found.return_annotation
    shown = (
        "" if result is found.empty or inspect.isclass(value) else annotation(result)
    )
    return laid_out(name, words, shown)


def parameter(each: inspect.Parameter) -> str:
    """Return a parameter with its type and default."""
    stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
    typed = each.annotation is not each.empty
    words = f"{stars}{each.name}"
    words += f": {annotation(each.annotation)}" if typed else ""
    if each.default is each.empty:
        return words
    shown = getattr(each.default, "__name__", None) or repr(each.default)
    if " at 0x" in shown or len(shown) > WIDEST:
        shown = "…"
    return f"{words} = {shown}" if typed else f"{words}={shown}"


def annotation(value: Any) -> str:
    """Return a type as the source writes it."""
    return value if isinstance(value, str) else inspect.formatannotation(value)


def laid_out(name: str, words: list[str], result: str) -> str:
    """Return a signature on one line, or with a line a parameter."""
    arrow = f" -> {result}" if result else ""
    line = f"{name}({', '.join(words)}){arrow}"
    if len(line) <= WIDEST:
        return line
    rows = "".join(f"    {word},\n" for word in words)
    return f"{name}(\n{rows}){arrow}"


@cache
def stubs() -> dict[str, tuple[list[str], str]]:
    """Return the parameters and the result of what the stubs declare, by its name."""
    found: dict[str, tuple[list[str], str]] = {}
    for path in Path(memcfg.__file__).parent.rglob("*.pyi"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                found[node.name] = declared(node)
            if isinstance(node, ast.ClassDef):
                for each in node.body:
                    if isinstance(each, ast.FunctionDef):
                        made = each.name in ("__init__", "__new__")
                        name = node.name if made else f"{node.name}.{each.name}"
                        found[name] = declared(each)
    return found


def declared(node: ast.FunctionDef) -> tuple[list[str], str]:
    """Return the parameters and the result of a declaration, as a stub has them."""
    owner = node.args.posonlyargs or node.args.args
    if owner and owner[0].arg in ("self", "cls"):
        del owner[0]
    words = split(ast.unparse(node.args))
    made = node.name in ("__init__", "__new__") or node.returns is None
    return words, "" if made else ast.unparse(node.returns)


def split(text: str) -> list[str]:
    """Split at the commas that are in no bracket."""
    words, depth, begin = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            words.append(text[begin:place].strip())
            begin = place + 1
    return [*words, text[begin:].strip()] if text else []
