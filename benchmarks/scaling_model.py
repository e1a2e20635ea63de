"""How long an iteration takes on several ranks: a small model of data-parallel training, made of measured pieces.

Ranks do the same, each on rows of its own, and wait for each other wherever they add something up:

    iteration = contention × compute + waiting + gradient steps × reduction + few × short reduction
                + evaluation / iterations between two + checkpoint / iterations between two

All times are seconds. `scaling.py` measures the pieces and holds the model against two ranks.
"""

import dataclasses
import math
from dataclasses import dataclass
from statistics import NormalDist

SHORT = 9  # other reductions of an iteration, of few numbers: moments, metrics, whether to go on
FLOAT = 4  # bytes
TRUSTED = 8  # rows are measured whole and halved: below this part of them the law is not believed


@dataclass(frozen=True)
class Job:
    """What one rank does in an iteration, alone on its cores."""

    name: str
    rows: int
    steps: int  # of the environments
    rollout: float
    update: float
    rest: float  # metrics and what else the loop does
    half: float  # rollout, update and rest with half the rows; shows what does not shrink with them
    reductions: int  # of the gradient
    numbers: int  # that each of them adds up
    evaluation: float  # of all its episodes on one rank
    evaluation_half: float  # of half of them
    evaluation_every: int  # steps, of all ranks together
    checkpoint: float  # written with every evaluation; of a rank's own part as long again

    @property
    def compute(self) -> float:
        return self.rollout + self.update + self.rest

    @property
    def floor(self) -> float:
        """Of the compute, what no smaller number of rows makes shorter."""
        return min(max(0.0, 2 * self.half - self.compute), self.compute)

    @property
    def knee(self) -> int:
        """Rows whose own work is as long as the floor: with fewer, more ranks hardly make it faster."""
        return round(self.rows * self.floor / max(self.compute - self.floor, 1e-12))

    def with_cores(self, cores: int) -> "Job":
        """With so many threads of environments on each rank, for evaluations, too; the rest has one."""
        saved = self.rollout - self.rollout / cores
        shorter = {name: getattr(self, name) / cores for name in ("rollout", "evaluation", "evaluation_half")}
        return dataclasses.replace(self, half=self.half - saved / 2, **shorter)

    def with_rows(self, rows: int) -> "Job":
        """With other rows on each rank, and as many gradient steps."""
        share = (self.floor + (self.compute - self.floor) * rows / self.rows) / self.compute
        half = self.floor + (self.compute - self.floor) * rows / self.rows / 2
        times = {name: getattr(self, name) * share for name in ("rollout", "update", "rest")}
        return dataclasses.replace(self, rows=rows, steps=self.steps * rows // self.rows, half=half, **times)


@dataclass(frozen=True)
class Link:
    """How long it takes to add up numbers of several ranks: a latency, and bytes that go one after the other."""

    latency: float
    rate: float  # bytes a second
    kind: str  # "memory": every rank reads what all have written; "ring": gloo's; "nccl"
    call: float = 0.0  # for each rank whose numbers are read

    def seconds(self, ranks: int, size: int) -> float:
        """Of one sum over `size` bytes."""
        if ranks == 1:
            return 0.0
        if self.kind == "memory":
            return self.latency + ranks * (self.call + size / self.rate)
        moved = 2 * (ranks - 1) / ranks * size / self.rate
        return moved + self.latency * (2 * (ranks - 1) if self.kind == "ring" else 1)


@dataclass(frozen=True)
class Cluster:
    """Ranks, and what lies between them."""

    name: str
    ranks: int
    among: Link  # ranks of one machine
    machines: int = 1
    between: Link | None = None  # machines
    contention: float = 1.0  # how much longer the same takes where every core has a rank
    unrest: float = 0.0  # standard deviation of a rank's time for a rollout or an update / that time
    jitter: float = 0.0  # beyond that, between two reductions: standard deviation / √ of the seconds of work

    def reduction(self, numbers: int) -> float:
        size, here = numbers * FLOAT, self.ranks // self.machines
        total = self.among.seconds(here, size)
        if self.machines > 1:
            assert self.between is not None
            handing_out = self.among.seconds(here, size) if self.among.kind == "memory" else 0.0
            total += self.between.seconds(self.machines, size) + handing_out
        return total


def slowest(ranks: int) -> float:
    """Standard deviations by which the slowest of so many lies above their mean (Blom 1958)."""
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


@dataclass(frozen=True)
class Prediction:
    """Of one iteration."""

    job: Job
    cluster: Cluster
    parts: dict[str, float]

    @property
    def training(self) -> float:
        """Without evaluations and checkpoints."""
        return sum(self.parts[name] for name in ("rollout", "update", "rest", "waiting", "reduction"))

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    @property
    def efficiency(self) -> float:
        """Steps a second of all ranks, by those that one rank would make with no other beside it, times ranks."""
        alone = predict(self.job, dataclasses.replace(self.cluster, ranks=1, machines=1, contention=1.0))
        return alone.total_a_step / (self.total_a_step * self.cluster.ranks)

    @property
    def total_a_step(self) -> float:
        return self.total / (self.job.steps * self.cluster.ranks)

    @property
    def limit(self) -> str:
        """What takes most of the time that one rank alone would not need."""
        lost = {name: seconds for name, seconds in self.parts.items() if name not in ("rollout", "update", "rest")}
        lost["contention"] = (1 - 1 / self.cluster.contention) * self._computed
        return max(lost, key=lambda name: lost[name])

    @property
    def _computed(self) -> float:
        return sum(self.parts[name] for name in ("rollout", "update", "rest"))


def predict(job: Job, cluster: Cluster) -> Prediction:
    """Every rank has the job's rows; steps between evaluations are counted over all ranks."""
    ranks, k = cluster.ranks, cluster.contention
    late = slowest(ranks)
    computed = {"rollout": k * job.rollout, "update": k * job.update, "rest": k * job.rest}
    unrest = late * cluster.unrest * (computed["rollout"] + computed["update"])
    jitter = late * cluster.jitter * math.sqrt(job.reductions * computed["update"])  # n times that of 1 / n of it
    reduction = job.reductions * cluster.reduction(job.numbers) + SHORT * cluster.reduction(1)
    every = max(1.0, job.evaluation_every / (job.steps * ranks))  # iterations
    evaluation = k * evaluation_on(job, ranks)
    checkpoint = job.checkpoint * (2 if ranks > 1 else 1)
    return Prediction(
        job,
        cluster,
        {
            **computed,
            "waiting": unrest + jitter,
            "reduction": reduction,
            "evaluation": evaluation / every,
            "checkpoint": checkpoint / every,
        },
    )


def evaluation_on(job: Job, ranks: int) -> float:
    """Episodes are shared out, but the longest of them takes its time on any rank."""
    floor = min(max(0.0, 2 * job.evaluation_half - job.evaluation), job.evaluation)
    return floor + (job.evaluation - floor) / ranks


def advise(job: Job, cluster: Cluster, reductions: float = 0.1, pauses: float = 0.05) -> Job:
    """The job with sizes for a cluster.

    All ranks together make the steps of an iteration that one makes now, as far as the knee allows. Reductions
    take at most a share of the training, evaluations and checkpoints at most a share of all.
    """
    rows = min(job.rows, max(job.rows // TRUSTED, job.knee, round(job.rows / cluster.ranks)))
    job = job.with_rows(rows)
    most = (
        reductions
        / (1 - reductions)
        * cluster.contention
        * job.compute
        / max(cluster.reduction(job.numbers), 1e-12)
    )
    job = dataclasses.replace(job, reductions=max(1, min(job.reductions, math.floor(most))))
    told = predict(job, cluster)
    pause = cluster.contention * evaluation_on(job, cluster.ranks) + 2 * job.checkpoint
    iterations = math.ceil((1 - pauses) / pauses * pause / told.training)
    return dataclasses.replace(
        job, evaluation_every=max(job.evaluation_every, iterations * job.steps * cluster.ranks)
    )
