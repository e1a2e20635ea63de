"""How a humanoid's metrics are shown."""

from ludus.display import Column, Curves, Display, Measure, Table
from ludus.envs.humanoid.config import HumanoidConfig
from ludus.envs.humanoid.tracking import ANY_DISTANCE, LOW, MEAN_DISTANCE


def humanoid_display(config: HumanoidConfig) -> Display:
    follows = config.goal == "track"
    return Display(
        measures=(_MPJPE,) if follows else (_POSE,),
        section="Motion",
        curves=_CURVES,
        table=CLIPS if follows else None,
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _millimetres(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


_MPJPE = Measure("mpjpe", "MPJPE", "mm")
_POSE = Measure("pose_error", "pose", "mm", everywhere=False)
_CURVES = (
    Curves(
        "Share of the frames before failing",
        {
            "training": "rollout/completion",
            "evaluation": "eval/completion",
            "unseen clips": "eval/test_completion",
        },
    ),
    Curves(
        "MPJPE: mean distance to the reference (mm)",
        {
            "training": "rollout/mpjpe",
            "evaluation": "eval/mpjpe",
            "episodes followed to the end": "eval/mpjpe_succeeded",
        },
    ),
    Curves(
        "MPJPE, three ways to measure (mm)",
        {
            "in the world": "eval/mpjpe",
            "roots in one place": "eval/mpjpe_local",
            "aligned": "eval/mpjpe_aligned",
        },
    ),
    Curves(
        "Error of the bodies' velocity (m/s)",
        {"evaluation": "eval/velocity_error", "episodes followed to the end": "eval/velocity_error_succeeded"},
    ),
    Curves(
        "Error of the bodies' acceleration (m/s²)",
        {
            "evaluation": "eval/acceleration_error",
            "episodes followed to the end": "eval/acceleration_error_succeeded",
        },
    ),
    Curves("Error of the speed (m/s)", {"training": "rollout/speed_error", "evaluation": "eval/speed_error"}),
    Curves("Distance to the nearest pose of the clips (mm)", {"evaluation": "eval/pose_error"}),
)
CLIPS = Table(
    kind="clip",
    title="Clips",
    columns=(
        Column("episodes", "episodes", lambda v: f"{v:,.0f}"),
        Column("success", "success_rate", _percent, bar=True),
        Column("strict", "success_strict", _percent, bar=True),
        Column("completed", "completion", _percent, bar=True),
        Column("unseen", "unseen", lambda v: "yes" if v else "", hint="Unseen: kept out of the training."),
        Column("MPJPE", "mpjpe", _millimetres, "mm"),
        Column("local", "mpjpe_local", _millimetres, "mm"),
        Column("aligned", "mpjpe_aligned", _millimetres, "mm"),
        Column("velocity", "velocity_error", lambda v: f"{v:.2f}", "m/s"),
        Column("accel.", "acceleration_error", lambda v: f"{v:.1f}", "m/s²"),
        Column(
            "starts", "share", _percent, hint="Starts: how large a part of the training's episodes begins in it."
        ),
    ),
    solved="clips followed from every start",
    rules=(
        f"Success: the bodies' mean distance to the reference never exceeded {MEAN_DISTANCE} m.",
        f"Strict: nor did any body's exceed {ANY_DISTANCE} m.",
        "Completed: share of the frames before it failed.",
    ),
    meaning="MPJPE is the bodies' mean distance in the world; local: with the roots in one place; "
    "aligned: after the best rotation, scale and shift. Of robots whose root stands below "
    f"{LOW} m, half and a quarter of its height take the place of {MEAN_DISTANCE} and {ANY_DISTANCE} m.",
)
