"""What is declared in source files, read without importing them: torch and MuJoCo take seconds."""

import ast
from collections.abc import Iterable
from pathlib import Path


def declared(files: Iterable[Path], kind: str) -> dict[str, str]:
    """Name → summary of every `kind("name", "summary", …)` in the files, in their order."""
    calls = [
        node
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == kind
    ]
    literal = [call.args[:2] for call in calls if all(isinstance(arg, ast.Constant) for arg in call.args[:2])]
    return {ast.literal_eval(name): ast.literal_eval(summary) for name, summary in literal}
