"""What `energyml train` does: read the data, bind the spec, train in stages, keep everything in a folder."""

from __future__ import annotations

import gc
import importlib
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from energyml.bind.binder import network_labels
from energyml.cards.card import Selection
from energyml.data.load import Data, data_root, load_data
from energyml.data.vectors import give_vectors
from energyml.diagnostics import EnergyError
from energyml.driver import Compiled, read_choice, read_choices
from energyml.energy_model import EnergyModel
from energyml.loading import bind, names_vectors
from energyml.train.checkpoint import Checkpoint, read_checkpoint
from energyml.train.checks import check_stages, doubts
from energyml.train.folder import LAST, Folder, make_request
from energyml.train.loop import Trainer
from energyml.train.overrides import overridden
from energyml.train.ranks import any_of
from energyml.train.settings import Interrupted, Progress, Settings
from energyml.train.stages import Stage, plan_stages


@dataclass
class Request:
    """What a run is asked to do.

    Attributes:
        out: the folder of the run; nothing is kept when `None`.
        root: where the data's paths start.
        data: a reader in place of the spec's `data` line.
        infer: a backend in place of the spec's.
        train: stages in place of the spec's, as in `nll` or `marginal_ce then ssvm`.
        changes: options of the stages, as in `optimizer.lr=0.01`.
        seed: of the first weights, and of the order of batches unless a stage has its own.
        resume: go on with the run in `out`, if there is one.
        device: where to train.
        threads: threads of torch; its own choice when `None`.
        deterministic: refuse operations whose results vary.
        train_metrics: evaluate on training data too.
        limit: most epochs of a stage.
        metrics: what to evaluate beside the stop rule's metric.
    """

    out: Path | None = None
    root: Path | None = None
    data: str | None = None
    infer: str | None = None
    train: str | None = None
    changes: Sequence[str] = ()
    seed: int = 0
    resume: bool = False
    device: str = "cpu"
    threads: int | None = None
    deterministic: bool = False
    train_metrics: bool = False
    limit: int | None = None
    metrics: Sequence[str] = ()


@dataclass
class Run:
    """A run that ended.

    Attributes:
        model: with the best weights.
        history: a record for each epoch.
        data: what it was trained on.
        interrupted: whether it was asked to stop before its end.
        rank: which process this is; the first one speaks for all.
    """

    model: EnergyModel
    history: list[dict[str, Any]]
    data: Data
    interrupted: bool = False
    rank: int = 0


def train(compiled: Compiled, request: Request, progress: Progress | None = None) -> Run:
    """Train the model of a spec; see `Request`.  Under `torchrun` every process calls this, and the first writes."""
    if request.threads is not None:
        torch.set_num_threads(request.threads)
    if request.deterministic:
        torch.use_deterministic_algorithms(True)
    with processes(request.device) as (rank, world, device):
        told = progress if progress is not None and rank == 0 else Progress()
        return _train(compiled, request, told, rank, world, device)


def _train(
    compiled: Compiled, request: Request, progress: Progress, rank: int, world: int, device: torch.device
) -> Run:
    resumed = None
    if request.out is not None and request.resume and (request.out / LAST).exists():
        resumed = read_checkpoint(request.out / LAST)
    frozen: dict[str, Any] | None = None
    if resumed is not None:
        from energyml.data.vocabulary import Vocabulary

        saved = resumed.state["request"]["vocabularies"]
        frozen = {name: Vocabulary.from_json(one) for name, one in saved.items()}
    else:
        brought = {name: network_labels(compiled.graph, one) for name, one in compiled.graph.label_sets.items()}
        frozen = {name: labels for name, labels in brought.items() if labels is not None}
    data = load_data(compiled, root=request.root, using=request.data, vocabularies=frozen)
    if data.train is None or not len(data.train):
        raise EnergyError("there are no training examples; look at the `data` line and at `--root`")
    model = bind(compiled, labels=data.labels, seed=request.seed, pretrained=False)
    if resumed is None and names_vectors(compiled):
        data.notes += give_vectors(model, request.root)
    model.to(device)
    chosen = stages_of(compiled, request)
    stages = plan_stages(chosen, model.graph)
    infer = None if request.infer is None else read_choice("backend", request.infer, compiled.model)
    backend = str(infer or compiled.model.choices.infer or "auto")
    choices = {
        "train": [str(one) for one in chosen],
        "infer": backend,
        "decode": str(compiled.model.choices.decode) if compiled.model.choices.decode else None,
        "data": request.data or str(compiled.model.choices.data),
        "--epochs": request.limit,
    }
    data.notes += doubts(compiled, stages, data, backend)
    check_stages(stages, infer, model, data, request.metrics)
    folder = None
    if request.out is not None:
        root = data_root(compiled.source, request.root)
        asked = make_request(model, choices, data.vocabularies, request.seed, root)
        folder = _folder(request.out, asked, request.resume, rank, world, device)
    try:
        return _fit(model, stages, data, infer, request, progress, resumed, folder, (rank, world, device))
    finally:
        if folder is not None:
            folder.release()


def _folder(
    out: Path, asked: dict[str, Any], resume: bool, rank: int, world: int, device: torch.device
) -> Folder | None:
    """The folder of the run, in the process that writes; where that one is refused, the others end without a word."""
    found, refusal = None, None
    if rank == 0:
        try:
            found = Folder.create(out, asked, resume=resume)
        except EnergyError as problem:
            refusal = problem
    refused = any_of(refusal is not None, world, device)
    if refusal is not None:
        raise refusal
    if refused:
        raise SystemExit(1)
    return found


def _fit(
    model: EnergyModel,
    stages: list[Stage],
    data: Data,
    infer: Selection | None,
    request: Request,
    progress: Progress,
    resumed: Checkpoint | None,
    folder: Folder | None,
    place: tuple[int, int, torch.device],
) -> Run:
    rank, world, device = place
    assert data.train is not None
    with interruptible() as stopping:
        settings = Settings(
            infer=infer, metrics=tuple(request.metrics), device=device, rank=rank, world=world,
            train_metrics=request.train_metrics, limit=request.limit, stopping=stopping,
            seed=request.seed,
        )  # fmt: skip
        trainer = Trainer(model, data.train, data.validation, stages, settings, progress=progress)
        if folder is not None:
            trainer.save = folder.save
        for note in data.notes:
            progress.note(note)
        if resumed is not None:
            trainer.resume(resumed)
            if trainer.finished:
                progress.note(f"the run in {request.out} came to its end before; there is nothing left to do")
        elif request.resume:
            progress.note(f"there is no checkpoint in {request.out} yet; a new run begins")
        try:
            trainer.fit()
        except Interrupted:
            return Run(model, trainer.history, data, interrupted=True, rank=rank)
    return Run(model, trainer.history, data, rank=rank)


def stages_of(compiled: Compiled, request: Request) -> list[Selection]:
    """The stages that were asked for: the spec's, or others, with changes."""
    if request.train is None:
        chosen: list[Selection] = list(compiled.model.choices.train)
    else:
        # Options that the spec gives its first stage hold for other objectives too, where they have them.
        own = compiled.model.choices.train[0].options if compiled.model.choices.train else {}
        chosen = [
            Selection(one.card, {**{k: v for k, v in own.items() if one.card.option(k)}, **one.options})
            for one in read_choices("objective", request.train, compiled.model)
        ]
    return overridden(chosen, request.changes, compiled.model)


@contextmanager
def interruptible() -> Iterator[Any]:
    """A function that tells whether Ctrl-C or a polite kill asked to stop; a second one stops at once."""
    asked: list[int] = []

    def handle(number: int, frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before: dict[int, Any] = {}
    try:
        for number in (int(signal.SIGINT), int(signal.SIGTERM)):
            before[number] = signal.signal(number, handle)
    except ValueError:  # not the main thread: the caller stops us in its own way
        pass
    try:
        yield lambda: bool(asked)
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def processes(device: str) -> Iterator[tuple[int, int, torch.device]]:
    """This process's rank, how many there are, and its device; joins the group that `torchrun` describes."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    check_device(device)
    if world == 1:
        yield 0, 1, torch.device(device)
        return
    import torch.distributed as dist

    rank, local = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    accelerated = device.startswith("cuda")
    own = torch.device(device if not accelerated or ":" in device else f"cuda:{local}")
    began = not dist.is_initialized()
    if began:
        # Its functions keep the group of the moment as a default argument; imported later (DistributedDataParallel
        # does), they would keep this group and its threads beyond the interpreter's end, which aborts.
        importlib.import_module("torch.distributed.nn")

        dist.init_process_group("nccl" if accelerated else "gloo")
    try:
        yield rank, world, own
    except RuntimeError as problem:
        if "Connection closed by peer" in str(problem) or "Connection reset by peer" in str(problem):
            raise EnergyError("another process of this run ended; its own message says why") from problem
        raise
    finally:
        if began:
            gc.collect()  # modules that were trained in parallel hold the group, and are cycles
            dist.destroy_process_group()


def check_device(name: str) -> None:
    """A device that does not exist is refused in words."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as problem:
        count = torch.cuda.device_count()
        known = ", ".join(["cpu", *(f"cuda:{number}" for number in range(count))])
        raise EnergyError(f"`--device {name}` cannot be used here; there is {known}") from problem


__all__ = ["Request", "Run", "check_device", "stages_of", "train"]
