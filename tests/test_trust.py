"""A stranger's run or configuration cannot run code, write outside its folder or take the machine down.

Tests are named after the findings they keep closed.
"""

import json
import os
import shutil
import stat
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import ludus
from ludus import cli, trust
from ludus.errors import CheckpointError, ConfigError, LudusError, TrustError
from ludus.files import read_json
from ludus.run_pages import write_run_report
from ludus.runs import evaluate_run
from ludus.show.console import Console
from ludus.training.checkpoint import load_policy

SMALL: dict[str, Any] = {
    "env.num_envs": 2,
    "ppo.horizon": 8,
    "ppo.minibatches": 2,
    "ppo.update_epochs": 1,
    "loop.total_steps": 64,
    "eval.every": 32,
    "eval.episodes": 1,
    "log.tensorboard": False,
    "log.report": False,
}
# A module of a user's, or of a stranger's: it tells that it was imported.
MODULE = """
import gymnasium, pathlib
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
pathlib.Path(__file__).with_suffix(".imported").touch()
gymnasium.register("Stranger-v0", entry_point=CartPoleEnv, max_episode_steps=20)
"""


class Said(NamedTuple):
    code: int
    out: str
    err: str


Call = Callable[..., Said]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    """The command `ludus` in this process."""

    def run(*arguments: Any) -> Said:
        monkeypatch.setattr(sys, "argv", ["ludus", *map(str, arguments)])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        said = Said(code, *capfd.readouterr())
        assert "Traceback" not in said.out + said.err
        return said

    return run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    return ludus.train("gym:CartPole-v1", folder, console=Console("quiet"), overrides=SMALL)


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A run of this user's, to be tampered with."""
    shutil.copytree(trained, tmp_path / "run", symlinks=True)
    return tmp_path / "run"


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in a folder that one stands in."""
    name = f"stranger_{os.urandom(4).hex()}"
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    return name


def edit_config(run: Path, **env: Any) -> None:
    values = yaml.safe_load((run / "config.yaml").read_text())
    values["env"] = env
    (run / "config.yaml").write_text(yaml.safe_dump(values))


def rewrite(checkpoint: Path, file: str, change: Callable[[Any], Any]) -> None:
    """Change a file of a checkpoint, and its manifest with it, as a stranger would."""
    path = checkpoint / file
    if path.suffix == ".json":
        path.write_text(json.dumps(change(json.loads(path.read_text()))))
    else:
        save_file(change(load_file(path)), path)
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    content = path.read_bytes()
    manifest["files"][file] = {"bytes": len(content), "sha256": sha256(content).hexdigest()}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


def best_of(run: Path) -> Path:
    return (run / "checkpoints" / "best").resolve()


# 1: code that a run or a file names ---------------------------------------------------------------
@pytest.mark.parametrize("verb", ["eval", "resume", "play", "report"])
def test_trust_01_a_run_cannot_call_a_function_of_python(run: Path, call: Call, verb: str, tmp_path: Path) -> None:
    proof = tmp_path / "pwned"
    kwargs = {"args": f"touch {proof}", "shell": True}
    edit_config(run, kind="pettingzoo", id="subprocess:check_output", kwargs=kwargs)
    said = call(verb, run)
    assert not proof.exists()
    assert "subprocess" in said.err
    assert "--trust" in said.err
    assert (said.code == 2) is (verb != "report")  # which still has its curves
    said = call(verb, run, "--trust")
    assert not proof.exists()
    assert "a part of Python" in said.err


def test_trust_01_a_configuration_file_cannot_name_code(call: Call, tmp_path: Path) -> None:
    proof = tmp_path / "pwned"
    kwargs = {"args": f"touch {proof}", "shell": True}
    file = tmp_path / "shared.yaml"
    for kind, name in (("pettingzoo", "id"), ("vec", "factory")):
        file.write_text(yaml.safe_dump({"env": {"kind": kind, name: "subprocess:call", "kwargs": kwargs}}))
        said = call("train", "forage", "--config", file, "--run-dir", tmp_path / "new")
        assert said.code == 2
        assert "'subprocess'" in said.err
        assert not (tmp_path / "new").exists()
        assert call("train", "forage", "--config", file, "--trust", "--run-dir", tmp_path / "new").code == 2
        assert not proof.exists()


def test_trust_01_a_configuration_file_may_name_what_the_command_line_names(
    call: Call, tmp_path: Path, own_module: str
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"env": {"kind": "gym", "id": f"{own_module}:Stranger-v0"}}))
    flags = [
        "--config",
        file,
        "--total-steps",
        "64",
        "--ppo.horizon",
        "8",
        "--log.no-report",
        "--log.no-tensorboard",
    ]
    assert call("train", "gym:CartPole-v1", *flags, "--run-dir", tmp_path / "a").code == 2
    assert not (Path.cwd() / f"{own_module}.imported").exists()
    assert call("train", f"gym:{own_module}:Stranger-v0", *flags, "--run-dir", tmp_path / "b").code == 0


def test_trust_01_a_configuration_file_may_repeat_a_term_that_a_flag_names(
    call: Call, tmp_path: Path, own_module: str
) -> None:
    """And no other function, nor one whose name only begins like it."""
    with Path(f"{own_module}.py").open("a") as module:
        module.write("\ndef smooth(task):\n    return task.qpos[:, 0] * 0\n\ndef smooth_all(task): ...\n")
    file, flag = tmp_path / "terms.yaml", {"smooth": {"function": f"{own_module}:smooth", "weight": -0.1}}
    file.write_text(yaml.safe_dump({"env": {"rewards": flag}}))
    line = ("train", "half-cheetah", "--config", file, "--run-dir", tmp_path / "run", "--total-steps", "wrong")
    assert "would import the module" in call(*line).err
    other = json.dumps({"smooth": {"function": f"{own_module}:smooth_all"}})
    assert "would import the module" in call(*line, "--env.rewards", other).err
    said = call(*line, "--env.rewards", json.dumps(flag))
    assert "would import the module" not in said.err
    assert "total-steps" in said.err + said.out, "the next thing that is wrong"


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        ("subprocess:call", "a part of Python"),
        ("builtins:eval", "a part of Python"),
        ("torch:load", "defined in the package that is named|could not be made|cannot be called"),
        ("ludus.settings:load_config", "cannot be called"),
        ("gymnasium:Env", "not derived from VecEnv"),
        ("factories_of_strangers:rmtree", "is a function of 'shutil'"),
        ("factories_of_strangers:later", "is a function of 'os'|builtin_function_or_method"),
        ("factories_of_strangers:Plain", "not derived from VecEnv"),
        ("factories_of_strangers:thing", "is a Plain"),
    ],
)
def test_trust_01_a_factory_is_looked_at_before_it_is_called(
    factory: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "import functools, os\nfrom shutil import rmtree\nlater = functools.partial(os.system, command='true')\n"
        "class Plain:\n    def __call__(self, **_): raise AssertionError('called')\n"
        "    def __init__(self, **_): raise AssertionError('called')\nthing = object.__new__(Plain)\n"
    )
    (tmp_path / "factories_of_strangers.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LudusError, match=reason):
        ludus.train(f"vec:{factory}", tmp_path / "run", console=Console("quiet"))


# 2: the mark of one's own runs --------------------------------------------------------------------
def test_trust_02_a_module_beside_a_strangers_run_is_not_imported(run: Path, call: Call, own_module: str) -> None:
    edit_config(run, kind="gym", id=f"{own_module}:Stranger-v0")
    said = call("eval", run, "--episodes", 1)
    assert said.code == 2
    assert f"'{own_module}'" in said.err
    assert not (Path.cwd() / f"{own_module}.imported").exists()
    assert call("eval", run, "--episodes", 1, "--trust").code == 0
    assert (Path.cwd() / f"{own_module}.imported").exists()


@pytest.mark.parametrize("verb", ["eval", "resume", "play", "report", "export", "label", "train"])
def test_trust_02_an_algorithm_that_a_run_names_is_not_imported(
    run: Path, call: Call, own_module: str, verb: str, tmp_path: Path
) -> None:
    """Nor one that a configuration file names, before the user says so."""
    values = yaml.safe_load((run / "config.yaml").read_text()) | {"algo": f"{own_module}:ALGORITHM"}
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    for checkpoint in (run / "checkpoints").glob("step_*"):
        rewrite(checkpoint, "policy.json", lambda described: described | {"kind": f"{own_module}:ALGORITHM"})
    arguments: dict[str, list[Any]] = {
        "export": [run, tmp_path / "x.onnx"],
        "label": [run / "config.yaml", "--run", run],
    }
    arguments["train"] = ["gym:CartPole-v1", "--config", run / "config.yaml"]
    said = call(verb, *arguments.get(verb, [run]))
    assert said.code == 2 or verb == "report"  # whose curves need no policy
    assert f"would import the module '{own_module}'" in said.err or verb == "label"
    assert not Path(f"{own_module}.imported").exists()


def own_run(own_module: str, folder: Path) -> Path:
    return ludus.train(f"gym:{own_module}:Stranger-v0", folder, console=Console("quiet"), overrides=SMALL)


@pytest.mark.parametrize("kind", ["vec", "gym", "pettingzoo", "rrd-mujoco"])
def test_trust_02_a_preset_that_a_run_remembers_is_not_imported(
    run: Path, call: Call, own_module: str, kind: str
) -> None:
    facts = json.loads((run / "run.json").read_text())
    preset = f"{kind}:{own_module}" + (":make" if kind != "pettingzoo" else "")
    (run / "run.json").write_text(json.dumps({**facts, "preset": preset}))
    assert call("resume", run, "--total-steps", 128).code == 0
    assert not Path(f"{own_module}.imported").exists()
    assert json.loads((run / "run.json").read_text())["changed"] is None


def test_trust_02_a_run_that_this_user_trained_here_needs_no_word(
    tmp_path: Path, call: Call, own_module: str
) -> None:
    own = own_run(own_module, tmp_path / "own")
    assert call("eval", own, "--episodes", 1).code == 0
    shutil.move(own, tmp_path / "moved")
    assert call("eval", tmp_path / "moved", "--episodes", 1).code == 0
    assert call("resume", tmp_path / "moved", "--total-steps", 128).code == 0
    assert call("eval", tmp_path / "moved", "--episodes", 1).code == 0


def test_trust_02_a_mark_does_not_serve_for_another_module_arguments_or_key(
    tmp_path: Path, own_module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = own_run(own_module, tmp_path / "own")
    assert len(evaluate_run(own, 1, True).returns) == 1
    config = (own / "config.yaml").read_text()
    edit_config(own, kind="gym", id=f"{own_module}:Stranger-v0", kwargs={"x": 1})
    with pytest.raises(TrustError):
        evaluate_run(own, 1, True)
    (own / "config.yaml").write_text(config)
    # The same mark, and a module of the same name in a folder of a stranger's.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(f"{own_module}.py", elsewhere)
    with monkeypatch.context() as there:
        there.chdir(elsewhere)
        there.delitem(sys.modules, own_module)
        with pytest.raises(TrustError, match=own_module):
            evaluate_run(own, 1, True)
    # Another user, whose key is another.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with pytest.raises(TrustError):
        evaluate_run(own, 1, True)
    assert len(evaluate_run(own, 1, True, trust=True).returns) == 1


def test_trust_02_the_key_is_its_users_alone(
    tmp_path: Path, own_module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    own = own_run(own_module, tmp_path / "own")
    key = trust.state_folder() / "trust.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert key.read_bytes() not in (own / "trust.json").read_bytes()
    key.chmod(0o666)
    with pytest.raises(TrustError):
        evaluate_run(own, 1, True)


def test_trust_02_without_a_state_folder_training_works(
    tmp_path: Path, own_module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    own = own_run(own_module, tmp_path / "own")
    assert not (own / "trust.json").exists()
    with pytest.raises(TrustError):
        evaluate_run(own, 1, True)


def test_trust_02_the_present_folder_is_not_searched_for_what_ludus_itself_imports(
    run: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert call("eval", run, "--episodes", 1).code == 0
    assert "" not in sys.path


# 3, 4: links ------------------------------------------------------------------------------------------
LINKED = ["config.yaml", "run.json", "trust.json", "metrics.jsonl", "report.html", "train.lock",
          "evaluation.json", "episodes.jsonl", "results.json", "standing.json", "R_loss.f32", "tb", "wandb",
          "nan_dump", "checkpoints"]  # fmt: skip


@pytest.mark.parametrize("name", LINKED)
def test_trust_03_nothing_is_read_or_written_through_a_link(
    run: Path, call: Call, tmp_path: Path, name: str
) -> None:
    away = tmp_path / "precious"
    if (run / name).is_dir() or name in ("tb", "wandb", "nan_dump"):
        away.mkdir()
        (away / "file.tmp").write_text("precious")
    else:
        away.write_text((run / name).read_text() if (run / name).exists() else "precious")
    kept = (away / "file.tmp" if away.is_dir() else away).read_text()
    if (run / name).is_dir():
        shutil.rmtree(run / name)
    else:
        (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(away)
    for verb in (["eval"], ["report"], ["resume", "--total-steps", "128"]):
        said = call(verb[0], run, *verb[1:])
        assert said.code == 2
        assert f"{name} is a link" in said.err
    assert (away / "file.tmp" if away.is_dir() else away).read_text() == kept


@pytest.mark.parametrize("name", ["config.yaml.tmp", "report.html.tmp", "evaluation.json.tmp"])
def test_trust_03_a_prepared_temporary_name_is_not_written_to(
    run: Path, call: Call, tmp_path: Path, name: str
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (run / name).symlink_to(precious)
    assert call("report", run).code == 0
    assert call("resume", run, "--total-steps", "128").code == 0
    assert precious.read_text() == "mine"


@pytest.mark.parametrize("name", ["metrics.jsonl", "train.lock"])
def test_trust_03_a_file_with_a_second_name_elsewhere_stays_as_it_is(
    run: Path, call: Call, tmp_path: Path, name: str
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine\n")
    (run / name).unlink(missing_ok=True)
    os.link(precious, run / name)
    call("resume", run, "--total-steps", "128")
    assert precious.read_text() == "mine\n"


def test_trust_03_a_device_or_pipe_in_a_run_is_refused(run: Path, call: Call) -> None:
    (run / "metrics.jsonl").unlink()
    os.mkfifo(run / "metrics.jsonl")
    for verb in ("eval", "report", "resume"):
        said = call(verb, run)
        assert said.code == 2
        assert "is not what Ludus wrote" in said.err


def test_trust_04_leftovers_in_another_folder_are_not_deleted(run: Path, call: Call, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.move(run / "checkpoints", elsewhere)
    (elsewhere / "thesis.tmp").write_text("mine")
    (run / "checkpoints").symlink_to(elsewhere)
    assert call("resume", run).code == 2
    assert (elsewhere / "thesis.tmp").read_text() == "mine"


def test_trust_04_only_our_own_temporary_names_are_cleared(run: Path, call: Call) -> None:
    (run / "checkpoints" / "thesis.tmp").write_text("mine")
    (run / "checkpoints" / "step_000000001.tmp").mkdir()
    half = run / "checkpoints" / ".step_000000048.0123456789ab.ludus-tmp"
    half.mkdir()
    assert call("resume", run, "--total-steps", "128").code == 0
    assert (run / "checkpoints" / "thesis.tmp").read_text() == "mine"
    assert not half.exists()


@pytest.mark.parametrize("target", ["/etc", "../..", "../../other/checkpoints/step_000000064", "step_1/../.."])
def test_trust_04_best_and_final_name_checkpoints_of_their_run_alone(run: Path, call: Call, target: str) -> None:
    pointer = run / "checkpoints" / "best"
    pointer.unlink()
    pointer.symlink_to(target)
    said = call("eval", run)
    assert said.code == 2
    assert "no checkpoint of its run" in said.err


# 13: weights ------------------------------------------------------------------------------------------
def test_trust_13_weights_that_are_not_finite_are_refused(run: Path, call: Call) -> None:
    def poison(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        tensors["encoder.layers.0.weight"][0, 0] = float("nan")
        return tensors

    rewrite(best_of(run), "policy.safetensors", poison)
    said = call("eval", run)
    assert said.code == 2
    assert "'encoder.layers.0.weight'" in said.err
    assert "not finite" in said.err


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.float16])
def test_trust_13_weights_of_another_type_are_refused(run: Path, call: Call, dtype: torch.dtype) -> None:
    rewrite(
        best_of(run),
        "policy.safetensors",
        lambda tensors: tensors | {"value_head.bias": torch.zeros(1, dtype=dtype)},
    )
    said = call("eval", run)
    assert said.code == 2
    assert "'value_head.bias'" in said.err


@pytest.mark.parametrize("hidden", [[10**9], [10**6, 10**6], [-1], ["x"], [1.5], [64] * 5000, "text", None, {}])
def test_trust_13_a_described_size_is_held_to_the_tensors_before_anything_is_allocated(
    run: Path, hidden: Any
) -> None:
    def enlarge(description: dict[str, Any]) -> dict[str, Any]:
        description["config"]["hidden"] = hidden
        return description

    checkpoint = best_of(run)
    rewrite(checkpoint, "policy.json", enlarge)
    with pytest.raises(CheckpointError):
        load_policy(checkpoint)


# 16, 17: files of a run that are no files of a run ----------------------------------------------------
BOMB = "a: &a [x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 8)}]\n" for i in range(12)
)


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        "seed: " + "9" * 5000,
        "[" * 20_000,
        "{a: " * 3_000,
        "env: !!python/object/apply:os.system [true]",
        "? [a]\n: b",
        "\x00\x01",
        "seed: 1" + " " * 300_000,
        "env: {kind: gym, id: 5}",
        "env: 7",
        "seed: 2020-01-01",
        "- 1",
        "",
    ],
    ids=range(13),
)
def test_trust_16_17_a_configuration_that_is_none_is_a_sentence(run: Path, call: Call, text: str) -> None:
    (run / "config.yaml").write_text(text)
    for verb in ("eval", "resume", "report"):
        assert call(verb, run).code == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda files: files | {"/dev/zero": {"bytes": 0, "sha256": ""}},
        lambda files: files | {"../../config.yaml": {"bytes": 0, "sha256": ""}},
        lambda files: files | {"pipe": {"bytes": 0, "sha256": ""}},
        lambda files: [files],
        lambda files: dict.fromkeys(files),
        lambda files: files | {"policy.json": {"bytes": "many", "sha256": []}},
    ],
    ids=range(6),
)
def test_trust_16_a_manifest_names_nothing_but_a_checkpoints_files(
    run: Path, call: Call, change: Callable[[Any], Any]
) -> None:
    for checkpoint in (run / "checkpoints").glob("step_*"):
        os.mkfifo(checkpoint / "pipe") if "pipe" in str(change({})) else None
        manifest = json.loads((checkpoint / "manifest.json").read_text())
        (checkpoint / "manifest.json").write_text(json.dumps(manifest | {"files": change(manifest["files"])}))
    assert call("eval", run).code == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda plain: plain | {"state": []},
        lambda plain: plain | {"state": {"counters": {}, "job": None}},
        lambda plain: {"format": 1},
        lambda plain: [],
        lambda plain: (
            plain | {"state": plain["state"] | {"counters": plain["state"]["counters"] | {"iteration": -9}}}
        ),
        lambda plain: (
            plain | {"state": plain["state"] | {"counters": plain["state"]["counters"] | {"best_step": {}}}}
        ),
        lambda plain: plain | {"state": plain["state"] | {"job": {"ppo": {"__tensor__": "absent"}}}},
    ],
    ids=range(7),
)
def test_trust_17_odd_values_in_a_training_state_are_a_sentence(
    run: Path, call: Call, change: Callable[[Any], Any]
) -> None:
    for checkpoint in (run / "checkpoints").glob("step_*"):
        rewrite(checkpoint, "training.json", change)
    assert call("resume", run, "--total-steps", "128").code == 2


def test_trust_17_deeply_nested_json_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text("[" * 200_000)
    with pytest.raises(LudusError, match="nested too deeply"):
        read_json(path, 10**6)
    path.write_text("9" * 5000)
    with pytest.raises(LudusError, match="is not JSON"):
        read_json(path, 10**6)
    path.write_text("[" + "[]," * 10_000_000 + "[]]")
    with pytest.raises(LudusError, match="more values"):
        read_json(path, 10**9)


def test_trust_17_a_checkpoint_with_a_number_of_thousands_of_digits_is_none(run: Path, call: Call) -> None:
    (run / "checkpoints" / f"step_{'9' * 200}").mkdir()
    assert call("eval", run, "--episodes", 1).code == 0


def test_trust_17_a_path_that_is_not_utf8_is_shown_all_the_same(run: Path, call: Call, tmp_path: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/run\xff"))
    shutil.copytree(run, odd, symlinks=True)
    for verb in ("eval", "resume", "report"):
        assert call(verb, odd).code in (0, 2)  # safetensors cannot open it; what matters is a sentence
    assert "run�" in call("eval", odd.with_name(odd.name + "x")).err


# 22: escape codes -------------------------------------------------------------------------------------
def test_trust_22_escape_codes_of_a_configuration_do_not_reach_the_terminal(run: Path, call: Call) -> None:
    edit_config(run, kind="gym", id="CartPole-v1\x1b]0;title\x07\x1b[2J")
    said = call("eval", run)
    assert said.code == 2
    assert "\x1b" not in said.err + said.out


def test_a_report_of_an_untrusted_run_has_its_curves_and_no_replay(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_config(run, kind="vec", factory="a_strangers_module:make")
    assert write_run_report(run).exists()
    assert "a_strangers_module" in capsys.readouterr().err


def test_an_unknown_setting_of_a_run_is_named(run: Path) -> None:
    (run / "config.yaml").write_text("sede: 1")
    with pytest.raises(ConfigError, match="sede"):
        evaluate_run(run, 1, True)


# A second attack ----------------------------------------------------------------------------------------
def test_trust_01_a_function_of_ludus_itself_is_code_as_well(run: Path, call: Call, tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    code = {"kind": "pettingzoo", "id": "ludus.envs.importing:import_module_of"}
    edit_config(run, **code, kwargs={"module": "evil", "env_id": "x"})
    said = call("eval", run)
    assert said.code == 2
    assert "would import the module 'ludus.envs.importing'" in said.err
    assert not (tmp_path / "executed").exists()


def test_trust_01_a_configuration_file_cannot_choose_what_a_module_of_the_users_does(
    own_module: str, call: Call, tmp_path: Path
) -> None:
    file = tmp_path / "s.yaml"
    with Path(f"{own_module}.py").open("a") as module:
        module.write("\ndef make(num_envs, folder=''): ...\ndef wipe(num_envs): ...\n")
    file.write_text(yaml.safe_dump({"env": {"kind": "vec", "factory": f"{own_module}:wipe"}}))
    said = call("train", f"vec:{own_module}:make", "--config", file, "--run-dir", tmp_path / "new")
    assert said.code == 2
    assert "for something that the command line does not name" in said.err


def test_trust_02_the_present_folder_stands_in_for_no_package(
    run: Path, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PettingZoo's own environments need no trust, so what they import must not lie beside the run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.delitem(sys.modules, "multi_agent_ale_py", raising=False)
    (tmp_path / "multi_agent_ale_py.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    edit_config(run, kind="pettingzoo", id="pettingzoo.atari.pong_v3", kwargs={})
    assert call("eval", run).code == 2
    assert not (tmp_path / "executed").exists()


def test_trust_02_a_package_without_an_init_file_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bare_package").mkdir()
    (tmp_path / "bare_package" / "cart.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    own = ludus.train(
        "gym:bare_package.cart:Stranger-v0", tmp_path / "run", console=Console("quiet"), overrides=SMALL
    )
    for name in [name for name in sys.modules if name.startswith("bare_package")]:
        monkeypatch.delitem(sys.modules, name)
    assert len(evaluate_run(own, 1, True).returns) == 1


def test_trust_03_what_a_leftover_checkpoint_links_to_is_not_put_in_place(
    run: Path, call: Call, tmp_path: Path
) -> None:
    outside, newest = tmp_path / "outside", max(run.glob("checkpoints/step_*"))
    shutil.copytree(newest, outside)
    leftover = run / "checkpoints" / f".{newest.name}.abc.ludus-tmp"
    leftover.mkdir()
    for file in outside.iterdir():
        (leftover / file.name).symlink_to(file)
    (leftover / "manifest.json").unlink()
    (leftover / "manifest.json").write_text('{"format": 1, "files": {}}')
    shutil.rmtree(newest)
    call("resume", run)
    assert not [file for file in run.rglob("*") if file.is_symlink() and outside in file.resolve().parents]


@pytest.mark.parametrize("text", ["ppo: {learning_rate: 1%s}", "0x%s: 1", "algo: 0x%s"])
def test_trust_17_a_number_of_more_than_64_bits_is_a_sentence(text: str, call: Call, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(text % ("0" * 400 if "ppo" in text else "f" * 900))
    said = call("train", "gym:CartPole-v1", "--config", tmp_path / "c.yaml", "--run-dir", tmp_path / "new")
    assert said.code == 2
    assert "more than 64 bits" in said.err


@pytest.mark.parametrize("line", [b"\n", b'{"step":1}\n'])
def test_trust_17_metrics_without_end_are_refused(
    line: bytes, run: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ludus.show.jsonl._MOST_ROWS", 5_000)
    with (run / "metrics.jsonl").open("wb") as file:
        file.write(line * 6_000)
    said = call("report", run)
    assert "more than 5,000 lines" in said.err
