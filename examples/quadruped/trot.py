"""Write trot.csv: a trot in place of a recording, each foot on its path, joints by two-link inverse kinematics.

python trot.py
ludus train mimic --body quadruped.toml --clip trot.csv --env.no-resample
"""

import csv
from pathlib import Path

import numpy as np

FPS, CYCLES, PERIOD = 50, 10, 0.5  # frames a second, cycles, seconds of one
SPEED, LIFT, HEIGHT = 0.5, 0.06, 0.30  # m/s, m that a foot rises, m of the hip over the sole
LINK, SOLE = 0.2, 0.022  # m of thigh and shin, radius of a foot
LEGS = {"front_left": 0.0, "front_right": 0.5, "rear_left": 0.5, "rear_right": 0.0}  # when each lifts, in cycles


def foot_path(phase: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(forward, up) of a foot from the hip's ground point: half a cycle on the floor, half in the air."""
    stride = SPEED * PERIOD / 2
    swing = np.clip(phase / 0.5, 0, 1)
    ahead = stride * (0.5 - (phase - 0.5) / 0.5)
    forward = np.where(phase < 0.5, stride * (-0.5 + swing - np.sin(2 * np.pi * swing) / (2 * np.pi)), ahead)
    return forward, np.where(phase < 0.5, LIFT * np.sin(np.pi * swing) ** 2, 0.0)


def leg_angles(forward: np.ndarray, down: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(thigh, knee) that put the foot there; the knee bends backward."""
    reach = np.hypot(forward, down)
    knee = -2 * np.arccos(np.clip(reach / (2 * LINK), -1, 1))
    return np.arctan2(-forward, down) - knee / 2, knee


def main() -> None:
    times = np.arange(CYCLES * int(PERIOD * FPS) + 1) / FPS
    columns = {"time": times, "root_x": SPEED * times, "root_y": 0 * times, "root_z": 0 * times + HEIGHT}
    columns |= {"root_qw": 0 * times + 1, "root_qx": 0 * times, "root_qy": 0 * times, "root_qz": 0 * times}
    for leg, offset in LEGS.items():
        forward, up = foot_path((times / PERIOD + offset) % 1)
        thigh, knee = leg_angles(forward, HEIGHT - SOLE - up)
        columns |= {f"{leg}_hip": 0 * times, f"{leg}_thigh": thigh, f"{leg}_knee": knee}
    with Path(__file__).with_name("trot.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(columns)
        rows.writerows(np.stack(list(columns.values()), axis=1).round(6).tolist())


if __name__ == "__main__":
    main()
