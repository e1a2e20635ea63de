"""A view of the metrics in Weights & Biases."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ludus.errors import ConfigError


class WandbSink:
    """Logs to one W&B run; pass `resume_id` (the `run_id` of before) to go on in the same one."""

    name = "Weights & Biases"
    required = False

    def __init__(
        self,
        project: str,
        name: str | None = None,
        config: dict[str, Any] | None = None,
        dir: Path | str | None = None,
        resume_id: str | None = None,
        tags: Sequence[str] = (),
        note: str = "",
    ) -> None:
        try:
            import wandb
        except ImportError as error:
            raise ConfigError(
                "W&B logging is on, but the package is missing: `pip install 'ludus[wandb]'`."
            ) from error
        if dir is not None:
            Path(dir).mkdir(parents=True, exist_ok=True)
        try:
            self._run = wandb.init(
                project=project,
                name=name,
                config=config,
                dir=None if dir is None else str(dir),
                id=resume_id,
                resume="allow" if resume_id else None,
                tags=list(tags) or None,
                notes=note or None,
            )
        except Exception as error:  # wandb raises many kinds: no login, no network, bad project name …
            raise ConfigError(
                f"W&B could not start: {error}. Run `wandb login`, set WANDB_MODE=offline, or turn it off."
            ) from error
        self.run_id: str = self._run.id

    def write(self, step: int, metrics: dict[str, float]) -> None:
        self._run.log(metrics, step=step)

    def keep_models(self, models: Mapping[str, Sequence[Path]]) -> None:
        """As versions of one artifact; where two are the same model, it is one version with both names."""
        import wandb

        names: dict[tuple[Path, ...], list[str]] = {}
        for name, files in models.items():
            names.setdefault(tuple(files), []).append(name)
        for files, aliases in names.items():
            artifact = wandb.Artifact(f"model-{self.run_id}", type="model")
            for file in files:
                artifact.add_file(str(file), name=file.name)
            self._run.log_artifact(artifact, aliases=aliases)

    def flush(self) -> None:
        """W&B sends from its own process; there is nothing to do here."""

    def close(self) -> None:
        self._run.finish()
