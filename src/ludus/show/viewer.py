"""Watch a policy live in the browser, in real time, with pause, speed and next episode."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import mujoco
import numpy as np

from ludus.errors import plain_text
from ludus.show import text
from ludus.show.mujoco_scene import MujocoScene, bounds, browser_server, framing, pose, traveller

# What one step of the policy and its environment gives: qpos, mocap_pos, mocap_quat, what to say beside it.
StepResult = tuple[Any, Any, Any, Mapping[str, float | str]]

_SPEEDS = ("¼", "½", "1", "2", "4")
_SPEED_VALUES = dict(zip(_SPEEDS, (0.25, 0.5, 1.0, 2.0, 4.0), strict=True))
_HARMLESS = str.maketrans("|{}<>[]`\\*_&", "/()‹›()'/·-+")
_LONGEST_WORDS = 200
_FRAME_S = 1 / 60
_PANEL_S = 0.2
_CAMERA_S = 0.4  # how slowly the camera follows


def play(
    model: mujoco.MjModel,
    step_fn: Callable[[], StepResult],
    dt: float,
    port: int = 8080,
    max_seconds: float | None = None,
    next_episode: Callable[[], None] | None = None,
    title: str = "Ludus",
    host: str = "127.0.0.1",
    say: Callable[[str], None] = print,
    next_label: str = "Next episode",
) -> None:
    """Call `step_fn` every `dt` seconds and show what it returns, until Ctrl-C or `max_seconds`.

    A taken port is replaced by the next free one; the address is printed. `next_episode`, if given,
    is called when the viewer asks for a new episode.
    """
    with browser_server(host, port) as server:
        scene = MujocoScene(server, model)
        panel = _Panel(server, title, None if next_episode is None else next_label)
        say(f"Open http://{'localhost' if host in ('127.0.0.1', '0.0.0.0') else host}:{server.get_port()}")
        say("Ctrl-C ends the viewer.")
        try:
            _loop(model, scene, panel, step_fn, dt, max_seconds, next_episode)
        except KeyboardInterrupt:
            say("Viewer closed.")


class _Panel:
    """The controls and the metrics beside the picture. Viser's threads call back: they only set flags."""

    def __init__(self, server: Any, title: str, next_label: str | None) -> None:
        self.paused = False
        self.skip = False
        self._shown_at = -math.inf
        server.gui.set_panel_label(plain_text(title, _LONGEST_WORDS))
        self._pause = server.gui.add_button("Pause")
        self._pause.on_click(self._toggle)
        if next_label is not None:
            server.gui.add_button(next_label).on_click(self._ask_skip)
        self._speed = server.gui.add_button_group("Speed", _SPEEDS)
        self._speed.value = "1"
        self._metrics = server.gui.add_markdown("")

    @property
    def speed(self) -> float:
        return 0.0 if self.paused else _SPEED_VALUES[self._speed.value]

    def show(self, metrics: Mapping[str, float | str]) -> None:
        if time.monotonic() - self._shown_at < _PANEL_S:
            return
        self._shown_at = time.monotonic()
        rows = "\n".join(f"| {_words(text.label(name))} | {_words(value)} |" for name, value in metrics.items())
        self._metrics.content = f"| | |\n|:--|--:|\n{rows}" if rows else ""

    def _toggle(self, _: object) -> None:
        self.paused = not self.paused
        self._pause.label = "Play" if self.paused else "Pause"

    def _ask_skip(self, _: object) -> None:
        self.skip = True


def _words(value: float | str) -> str:
    """Text stays text within its cell of a markdown table: viser's markdown runs what is in braces as a script."""
    return plain_text(value, _LONGEST_WORDS).translate(_HARMLESS) if isinstance(value, str) else text.number(value)


def _loop(
    model: mujoco.MjModel,
    scene: MujocoScene,
    panel: _Panel,
    step_fn: Callable[[], StepResult],
    dt: float,
    max_seconds: float | None,
    next_episode: Callable[[], None] | None,
) -> None:
    camera = _Camera(model)
    owed = dt  # simulated seconds that should have passed by now: the first step comes at once
    started = last = time.monotonic()
    while max_seconds is None or last - started < max_seconds:
        if panel.skip and next_episode is not None:
            panel.skip = False
            next_episode()
            owed = dt
        result = None
        deadline = time.monotonic() + _FRAME_S
        while owed >= dt and time.monotonic() < deadline:
            result = step_fn()
            owed -= dt
        if result is not None:
            qpos, mocap_pos, mocap_quat, metrics = result
            frame = {"qpos": qpos, "mocap_pos": mocap_pos, "mocap_quat": mocap_quat}
            if camera.needs_aim:
                scene.aim(*camera.first_look(frame))
            scene.show(frame, camera.follow(frame))
            panel.show(metrics)
        time.sleep(max(0.0, deadline - time.monotonic()))
        now = time.monotonic()
        # A simulation slower than real time runs as fast as it can; it does not pile up a debt.
        owed = min(owed + (now - last) * panel.speed, dt + 2 * _FRAME_S * max(1.0, panel.speed))
        last = now


class _Camera:
    """Looks at the whole model first, then follows a robot that walks away."""

    def __init__(self, model: mujoco.MjModel) -> None:
        self.needs_aim = True
        self._model = model
        self._data = mujoco.MjData(model)
        self._body = traveller(model)
        self._start = np.zeros(2)
        self._radius = 1.0
        self._at: np.ndarray | None = None
        self._last = time.monotonic()

    def first_look(self, frame: dict[str, Any]) -> tuple[np.ndarray, float]:
        self.needs_aim = False
        model, data = self._model, self._data
        pose(model, data, frame)
        self._start = data.xpos[self._body, :2].copy()
        low, high = bounds(model, data)
        center, self._radius = framing(low.min(axis=0), high.max(axis=0))
        return center, 1.3 * self._radius  # room to move in

    def follow(self, frame: dict[str, Any]) -> np.ndarray | None:
        """How far the picture's middle has moved from the start; None while the robot stays at home."""
        pose(self._model, self._data, frame)
        target = self._data.xpos[self._body, :2] - self._start
        if self._at is None and np.linalg.norm(target) < 0.2 * self._radius:
            return None
        now, before = time.monotonic(), self._last
        self._last = now
        at = np.zeros(2) if self._at is None else self._at
        self._at = at + (target - at) * min(1.0, (now - before) / _CAMERA_S)
        return self._at
