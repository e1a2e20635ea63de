"""`ludus doctor`: what this machine and installation can do."""

import importlib.metadata
import importlib.util
import platform
import shutil
import sys
import time

import torch

from ludus.commands.arguments import Verb, call
from ludus.errors import LudusError
from ludus.ranks import available_cores

_EXTRAS = {
    "viz": (["viser", "mjviser"], "ludus play and the 3-D replay"),
    "video": (["imageio_ffmpeg"], "MP4 by ludus video; a GIF needs nothing"),
    "onnx": (["onnx", "onnxscript", "onnxruntime"], "ludus export"),
    "wandb": (["wandb"], "logging to Weights & Biases"),
    "data": (["h5py"], "recorded data: --data, ludus record, ludus data, ludus label"),
    "atari": (["ale_py", "cv2"], "ludus train gym:ALE/…"),
    "box2d": (["Box2D"], "ludus train gym:LunarLander-v3 and the like (not on ARM Linux)"),
    "g1": (["mjlab"], "ludus train mimic --body g1: model and meshes of the Unitree G1"),
    "robotics": (["gymnasium_robotics"], "ludus train gym:FetchReach-v4 --algo sac and the like"),
    "pettingzoo": (["pettingzoo"], "ludus train pettingzoo:…"),
    "gpu": (["warp", "mujoco_warp"], "MuJoCo Warp: KUKA, humanoid and locomotion on a GPU"),
    "sweep": (["optuna"], "ludus sweep"),
    "ray": (["ray"], "--ray: processes on the nodes of a Ray cluster"),
    "mettagrid": (["mettagrid"], "ludus train mettagrid:… (Python 3.11 and 3.12)"),
}
_NEEDED = ("torch", "numpy", "gymnasium", "mujoco", "tyro", "rich", "tensorboard", "safetensors")


def doctor(arguments: list[str]) -> None:
    def command() -> None:
        """Say what this machine and installation can do, and what is missing for the rest."""
        sys.exit(0 if _diagnose() else 1)

    call(command, arguments, "ludus doctor")


def _diagnose() -> bool:
    """Print what there is; false when training cannot work."""
    print(f"Python {platform.python_version()} on {platform.system()} {platform.machine()}")
    print(f"{available_cores()} cores, {shutil.disk_usage('.').free / 2**30:.0f} GiB free in this folder")
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none (training runs on the CPU)"
    print(f"GPU: {gpu}")
    found = [_needed(name) for name in _NEEDED]
    for extra, (modules, purpose) in _EXTRAS.items():
        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        state = "ok" if not missing else f"missing: pip install 'ludus[{extra}]'"
        print(f"  {extra:12} {state:40} {purpose}")
    return all(found) and _steps()


def _needed(name: str) -> bool:
    try:
        print(f"  {name:12} {importlib.metadata.version(name)}")
    except importlib.metadata.PackageNotFoundError:
        print(f"  {name:12} MISSING: pip install ludus")
        return False
    return True


def _steps() -> bool:
    """Does the main job's simulator run, and how fast?"""
    from ludus.runs import make_env

    try:
        env = make_env("kuka-pick-place", num_envs=64)
        env.reset(0)
        action = torch.zeros(64, 4)
        env.step(action)
        started = time.perf_counter()
        for _ in range(10):
            env.step(action)
        print(f"KUKA simulation: {640 / (time.perf_counter() - started):,.0f} steps/s")
        env.close()
    except (LudusError, RuntimeError, OSError) as error:
        print(f"KUKA simulation FAILED: {error}")
        return False
    return True


VERBS: dict[str, Verb] = {"doctor": doctor}
