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


def declared_verbs(file: Path, table: str = "VERBS") -> dict[str, str]:
    """Name → function of the verbs in a table of a file of `commands/`."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    tables = [
        node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign)
        and ast.unparse(node.target) == table
        and isinstance(node.value, ast.Dict)
    ]
    pairs = [pair for found in tables for pair in zip(found.keys, found.values, strict=True)]
    return {ast.literal_eval(key): ast.unparse(value) for key, value in pairs if key is not None}


def declared_options(file: Path, verb: str) -> list[str]:
    """The options of a verb of `commands/`: `--episodes` of 'eval', from the function that reads its arguments."""
    functions = {
        node.name: node
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    found = functions.get((declared_verbs(file) | declared_verbs(file, "_VERBS")).get(verb, ""))
    inner = [] if found is None else [node for node in found.body if isinstance(node, ast.FunctionDef)]
    arguments = [argument for function in inner[:1] for argument in function.args.args]
    words = {argument.arg: ast.unparse(argument.annotation or argument) for argument in arguments}
    return [f"--{name.replace('_', '-')}" for name, kind in words.items() if not _is_positional(kind)]


def _is_positional(annotation: str) -> bool:
    return "Positional" in annotation or annotation.startswith("_")  # or a name for such a type
