"""The training loop: stages, balance, stopping, checkpoints.  One loop; everything else is data for it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from energyml.bind.gains import Gain
from energyml.bind.inputs import DataError
from energyml.cards.card import Selection
from energyml.data.batches import Batches
from energyml.data.dataset import Batch, Dataset
from energyml.diagnostics import EnergyError
from energyml.objectives.kept import all_stored, restore_all
from energyml.train.balance import Balance, make_balance, watched
from energyml.train.checkpoint import (
    Checkpoint,
    gains_from,
    kept_from,
    kept_tensors,
    optimizer_tensors,
    plain_gains,
    restore_optimizer,
)
from energyml.train.evaluate import decoder_for, default_metrics, evaluate
from energyml.train.loss import StageLoss, as_arguments
from energyml.train.plateau import Plateau
from energyml.train.ranks import any_of, each_of, mean_of, whole_of
from energyml.train.settings import Interrupted, Progress, Settings
from energyml.train.stages import Stage, owner_of
from energyml.training_state import TrainingState

if TYPE_CHECKING:
    from energyml.energy_model import EnergyModel

# Loss values are looked at on the host this often on an accelerator, where looking waits for the device.
PATIENCE = 20


class NotFinite(EnergyError):
    """A loss that is no number; the message names the term and the batch."""


class Trainer:
    """Trains a model in stages, and can stop and go on anywhere between two batches.

    Args:
        model: the bound model.
        train: the training data.
        validation: what stop rules look at; the training loss serves when `None`.
        stages: what to do.
        settings: how.
        save: takes a checkpoint and whether it is the best so far; called after each epoch, and when interrupted.
        progress: is told how it goes.
    """

    def __init__(
        self,
        model: EnergyModel,
        train: Dataset,
        validation: Dataset | None,
        stages: list[Stage],
        settings: Settings | None = None,
        save: Callable[[Checkpoint, bool], None] = lambda checkpoint, best: None,
        progress: Progress | None = None,
    ) -> None:
        for dataset in (train, validation):
            if dataset is not None:
                dataset.insist_on_labels(model.graph)
        self.model, self.train, self.validation = model, train, validation
        self.stages, self.settings = stages, settings or Settings()
        self.save, self.progress = save, progress or Progress()
        self.number = 0
        self.history: list[dict[str, Any]] = []
        self.best: dict[str, Any] | None = None
        self._resumed: Checkpoint | None = None
        self._best_weights: dict[str, Tensor] | None = None
        self.finished = False
        self._started = time.monotonic()
        self._elapsed = 0.0
        self._running: tuple[Tensor, int] = (torch.zeros((), dtype=torch.float64), 0)
        self._best_gains: dict[str, Gain] = {}
        self._inherited: dict[str, Gain] = {}

    # ------------------------------------------------------------------------------------------------------- running

    def fit(self) -> list[dict[str, Any]]:
        """Run all stages that are left; returns a record for each epoch.  The model ends with the best weights."""
        while self.number < len(self.stages):
            self._stage(self.stages[self.number])
            self.number += 1
            self.best, self._resumed = None, None
        self.finished = True
        self._checkpoint(None, best=True)
        return self.history

    def _stage(self, stage: Stage) -> None:
        settings = self.settings
        self.progress.stage(stage, self.number, len(self.stages))
        seed = int(stage["seed"]) + settings.seed
        batches = Batches(
            self.train, int(stage["batch"]), seed=seed + 1000 * self.number, rank=settings.rank, world=settings.world
        )
        balance = make_balance(None if stage.without else stage["balance"], self.model.graph)
        # zeros are the terms that a stage leaves out: they end with it
        self._inherited = {name: gain for name, gain in self.model.gains.items() if gain != 0.0}
        balance.begin(self._inherited)
        moving = self._moving(stage)
        optimizer = make_optimizer(stage["optimizer"], list(moving.values()))
        plateau = self._plateau(stage)
        torch.manual_seed(seed + 7919 * self.number + settings.rank)
        if self._resumed is not None:
            self._restore(self._resumed, batches, balance, optimizer, plateau, moving)
        self._set_gains(stage, balance)
        epochs = int(stage["epochs"]) if settings.limit is None else min(settings.limit, int(stage["epochs"]))
        loss = self._loss_module(stage, balance, lambda player: TrainingState(batches.epoch, epochs, player))
        state = _State(stage, batches, balance, optimizer, plateau, moving)
        while batches.epoch < epochs:
            if self._epoch(state, loss):
                break
        self._end_of_stage()

    def _epoch(self, state: _State, loss: nn.Module) -> bool:
        """One epoch, or the rest of one; whether the stage should stop."""
        self.model.train()
        batches, clip = state.batches, state.stage["clip"]
        began, count, epoch = time.monotonic(), len(batches), batches.epoch
        total, seen = self._running
        for batch in batches:
            moved = batch.to(self.settings.device)
            number = batches.position
            for player in state.players:
                if player is not None:
                    self._turn(state, player)
                state.optimizer.zero_grad(set_to_none=True)
                try:
                    value: Tensor = loss(moved) if player is None else loss(moved, player)
                except DataError as problem:
                    if not _is_no_number(problem):
                        raise
                    raise self._not_finite("nan", batch, state) from problem
                if value.requires_grad:  # a batch without cells is a constant
                    value.backward()
                if clip is not None:
                    nn.utils.clip_grad_norm_(list(state.moving.values()), float(clip))
                if self.settings.device.type == "cpu" or number % PATIENCE == 0:
                    self._look(value, batch, state)
                state.optimizer.step()
            total, seen = total + value.detach().double(), seen + 1
            self._running = (total, seen)
            if self.settings.device.type == "cpu" or number % PATIENCE == 0:
                self.progress.step(number, count, float(total) / max(1, seen))
            if any_of(self.settings.stopping(), self.settings.world, self.settings.device):
                self._checkpoint(state, best=False)
                raise Interrupted
        self._running = (torch.zeros((), dtype=torch.float64), 0)
        mean = float(mean_of(total, self.settings.world, self.settings.device)) / max(1, seen)
        if not math.isfinite(mean):
            raise NotFinite(
                f"the loss is {mean} in epoch {epoch + 1}; lower `lr`, or set `clip`; on the CPU the batch is named; "
                f"{self._kept()}"
            )
        return self._after_epoch(state, epoch, mean, time.monotonic() - began)

    def _after_epoch(self, state: _State, epoch: int, loss: float, seconds: float) -> bool:
        model, settings = self.model, self.settings
        began = time.monotonic()
        record: dict[str, Any] = {"stage": state.stage.title, "epoch": epoch + 1, "loss": loss}
        if state.balance.subset:
            subset = self.train.sample(min(state.balance.subset, len(self.train)), int(state.stage["seed"]))
            state.balance.after_epoch(lambda gains: self._losses_at(state.stage, subset, gains))
            record["alpha"] = state.balance.alpha
            for note in dict.fromkeys(state.balance.notes):
                self.progress.note(note)
            state.balance.notes.clear()
        self._set_gains(state.stage, state.balance)
        ratio = self._ratio(state)
        if ratio is not None:
            record["ratio"] = ratio
        record |= self._evaluated(state.stage)
        record["lr"] = state.optimizer.param_groups[0]["lr"]
        record["seconds"], record["seconds_between"] = round(seconds, 3), round(time.monotonic() - began, 3)
        value = _judged(record, state.plateau.metric)
        lower, stop = state.plateau.step(value)
        better = self.best is None or _is_better(value, self.best["value"], state.plateau.higher)
        if better:
            self.best = {"value": value, "epoch": epoch + 1, "stage": self.number}
            self._best_weights = {name: one.detach().clone() for name, one in model.state_dict().items()}
            self._best_gains = dict(model.gains)
        if lower:
            for group in state.optimizer.param_groups:
                group["lr"] /= 10
        state.stopped = stop
        self.history.append(record)
        if settings.rank == 0:
            self.progress.epoch(record)
        self._checkpoint(state, best=better)
        return stop

    def _end_of_stage(self) -> None:
        """The next stage, and prediction, start from the best weights of this one."""
        if self._best_weights is not None:
            self.model.load_state_dict(self._best_weights)
            self.model.gains.clear()
            self.model.gains.update(self._best_gains)
        self._best_weights = None
        for parameter in self.model.parameters():
            parameter.requires_grad_(True)

    # -------------------------------------------------------------------------------------------------------- pieces

    def _moving(self, stage: Stage) -> dict[str, nn.Parameter]:
        """The parameters that a stage moves, by name; the others are frozen."""
        found = {}
        self.model.inference_module(self._using(stage))
        for name, parameter in self.model.named_parameters():
            moves = stage.moves(name)
            parameter.requires_grad_(moves)
            if moves:
                found[name] = parameter
        if not found:
            raise EnergyError(f"stage `{stage.title}` moves no parameters; look at `only`")
        return found

    def _plateau(self, stage: Stage) -> Plateau:
        chosen: Selection | None = stage["stop"]
        if chosen is not None:
            metric = str(chosen["metric"])
            return Plateau.of(chosen, metric != "loss" and self.validation is not None)
        first = next(iter([*default_metrics(self.model), *self.settings.metrics]), "loss")
        return Plateau(first, first != "loss" and self.validation is not None, 10**9, 10**9, 0.0)

    def _metrics(self, stage: Stage) -> list[str]:
        chosen: Selection | None = stage["stop"]
        named = [str(chosen["metric"])] if chosen is not None else []
        return [*dict.fromkeys([*self.settings.metrics, *default_metrics(self.model, named)])]

    def _using(self, stage: Stage) -> Selection | None:
        return stage["infer"] or self.settings.infer

    def _set_gains(self, stage: Stage, balance: Balance) -> None:
        """What the balance asks for; a stage that names none keeps the gains that its weights were trained with."""
        self.model.gains.clear()
        self.model.gains.update(balance.gains() if stage["balance"] is not None else self._inherited)
        self.model.gains.update(dict.fromkeys(stage.without, 0.0))

    def _turn(self, state: _State, player: str) -> None:
        """Only the parameters of one player move: those that the backend owns (`infer`), or all others."""
        for name, parameter in state.moving.items():
            parameter.requires_grad_(owner_of(name) == player)
        # what does not move is a fixed function: it drops no units
        self.model.train(player == "model")
        self.model.owned.train(player == "infer")

    def _loss_module(
        self, stage: Stage, balance: Balance, standing: Callable[[str | None], TrainingState]
    ) -> nn.Module:
        module = StageLoss(self.model, stage, balance, self._using(stage), self.settings.world, standing)
        if self.settings.world == 1:
            return module
        from torch.nn.parallel import DistributedDataParallel

        # a batch of chains of one cell, say, does not use the table of pairs
        return DistributedDataParallel(module, find_unused_parameters=True)

    def _losses_at(self, stage: Stage, subset: Dataset, gains: Sequence[Mapping[str, Gain]]) -> list[float]:
        """The mean loss of a subset under each choice of gains, over all processes; in evaluation mode."""
        settings = self.settings
        total = torch.zeros(len(gains), dtype=torch.float64, device=settings.device)
        self.model.eval()
        with torch.no_grad():
            for batch in Batches(
                subset, settings.evaluation_batch, shuffle=False, rank=settings.rank, world=settings.world
            ):
                moved = batch.to(settings.device)
                losses = self.model.losses_under(
                    gains, objective=stage.objective, using=self._using(stage), lengths=moved.lengths or None,
                    **as_arguments(moved.tensors),
                )  # fmt: skip
                total += torch.stack([one.sum() for one in losses]).double()
        self.model.train()
        if settings.world > 1:
            torch.distributed.all_reduce(total)
        return (total / max(1, len(subset))).tolist()

    def _ratio(self, state: _State) -> float | None:
        """The mean ratio of potentials of a few training examples; `None` where no example has both groups."""
        balance = state.balance if state.balance.scale else watched(self.model.graph)
        if balance is None or not len(self.train):
            return None
        batch = self.train.sample(min(200, len(self.train)), 0).batch().to(self.settings.device)
        self.model.eval()
        try:
            with torch.no_grad():
                problem = self.model.problem(lengths=batch.lengths or None, **as_arguments(batch.inputs))
                found = float(balance.ratio(problem.env, self.model.gains).nanmean())
        except EnergyError:
            return None
        finally:
            self.model.train()
        return None if math.isnan(found) else found

    def _evaluated(self, stage: Stage) -> dict[str, float]:
        found: dict[str, float] = {}
        metrics, using = self._metrics(stage), self._using(stage)
        decoder = decoder_for(self.model, stage.objective.name, using)
        shared: dict[str, Any] = {
            "using": using, "decoder": decoder, "size": self.settings.evaluation_batch,
            "rank": self.settings.rank, "world": self.settings.world,
        }  # fmt: skip
        if self.validation is not None and len(self.validation):
            values = evaluate(self.model, self.validation, metrics, **shared)
            found |= {f"validation.{name}": value for name, value in values.items()}
        if self.settings.train_metrics:
            count = len(self.train) if self.validation is None else min(len(self.train), len(self.validation))
            values = evaluate(self.model, self.train.sample(count, 0), metrics, **shared)
            found |= {f"train.{name}": value for name, value in values.items()}
        return found

    def _kept(self) -> str:
        """What is left of a run that ends in the middle of an epoch."""
        return "the last checkpoint is from before" if self.history else "there is no checkpoint yet"

    def _look(self, value: Tensor, batch: Batch, state: _State) -> None:
        """Stop at a loss that is no number, and say which term and which batch."""
        if not math.isfinite(float(value.detach())):
            raise self._not_finite(str(float(value.detach())), batch, state)

    def _not_finite(self, value: str, batch: Batch, state: _State) -> NotFinite:
        culprit = self._culprit(batch)
        place = self.train.place(int(batch.rows[0]))
        where = f"epoch {state.batches.epoch + 1}, batch {state.batches.position} (its first example: {place})"
        return NotFinite(
            f"the loss is {value} in {where}: {culprit}; lower `lr`, set `clip`, or look at these examples; "
            f"{self._kept()}"
        )

    def _culprit(self, batch: Batch) -> str:
        moved = batch.to(self.settings.device)
        for name, parameter in self.model.named_parameters():
            if not bool(parameter.isfinite().all()):
                return f"the parameter `{name}` holds numbers that are not finite"
        problem = self.model.problem(lengths=moved.lengths or None, **as_arguments(moved.inputs))
        for term in problem.terms:
            try:
                total, _ = term.weight(problem.env)
                table = getattr(term, "value", None)
                values = total if table is None else table(problem.env)
            except EnergyError as refusal:
                if _is_no_number(refusal):
                    return f"the term `{term.term.name}` has scores that are not finite"
                continue
            if bool((values.isnan() | values.isposinf()).any()):
                return f"the term `{term.term.name}` has scores that are not finite"
        return "every term's scores are finite, so a gold label may be forbidden"

    # ---------------------------------------------------------------------------------------------------- checkpoints

    def _checkpoint(self, state: _State | None, *, best: bool) -> None:
        settings = self.settings
        # all processes come here together; the first one writes for all of them
        random = {kind: each_of(one, settings.world, settings.device) for kind, one in self._random().items()}
        running = each_of(self._running[0], settings.world, settings.device)
        kept, of_kept = kept_tensors(whole_of(all_stored(self.model), settings.world))
        if settings.rank != 0:
            return
        tensors = {f"model.{name}": one for name, one in self.model.state_dict().items()}
        plain: dict[str, Any] = {
            "number": self.number, "history": self.history, "best": self.best, "finished": self.finished,
            "gains": plain_gains(self.model.gains),
            "elapsed": self._elapsed + time.monotonic() - self._started,
        }  # fmt: skip
        if state is not None:
            names = {id(parameter): name for name, parameter in self.model.named_parameters()}
            moved, numbers = optimizer_tensors(state.optimizer, names)
            tensors |= {f"optimizer.{name}": one for name, one in moved.items()}
            tensors |= {_random(kind, n): one for kind, every in random.items() for n, one in enumerate(every)}
            tensors |= {f"kept.{name}": one for name, one in kept.items()}
            if self._best_weights is not None:
                tensors |= {f"best.{name}": one for name, one in self._best_weights.items()}
            plain |= {
                "batches": state.batches.state_dict(), "balance": state.balance.state(), "optimizer": numbers,
                "plateau": state.plateau.state(), "stopped": state.stopped,
                "running": [[float(one) for one in running], self._running[1]],
                "best_gains": plain_gains(self._best_gains), "kept": of_kept,
            }  # fmt: skip
        self.save(Checkpoint(tensors, plain), best)

    def _random(self) -> dict[str, Tensor]:
        """The state of this process's random numbers, by kind of device."""
        found = {"cpu": torch.get_rng_state()}
        if self.settings.device.type == "cuda":
            found["cuda"] = torch.cuda.get_rng_state(self.settings.device)
        return found

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on where a checkpoint was written: the same batches, the same random numbers, the same weights."""
        self.model.load_state_dict(checkpoint.part("model"))
        self.model.gains.clear()
        self.model.gains.update(gains_from(checkpoint.state["gains"]))
        self.number = int(checkpoint.state["number"])
        self.history = list(checkpoint.state["history"])
        self.best = checkpoint.state["best"]
        self.finished = bool(checkpoint.state["finished"])
        self._elapsed = float(checkpoint.state["elapsed"])
        self._resumed = None if self.finished else checkpoint

    def _restore(
        self,
        checkpoint: Checkpoint,
        batches: Batches,
        balance: Balance,
        optimizer: torch.optim.Optimizer,
        plateau: Plateau,
        moving: Mapping[str, nn.Parameter],
    ) -> None:
        state = checkpoint.state
        batches.load_state_dict(state["batches"])
        balance.restore(state["balance"])
        restore_optimizer(optimizer, moving, checkpoint.part("optimizer"), state["optimizer"])
        for key, value in state["plateau"].items():
            setattr(plateau, key, value)
        self._best_weights = checkpoint.part("best") or None
        self._best_gains = gains_from(state["best_gains"])
        rank = self.settings.rank
        totals, seen = state["running"]
        known = totals if isinstance(totals, list) else [totals]
        own = known[rank] if rank < len(known) else sum(known) / len(known)
        self._running = (torch.tensor(own, dtype=torch.float64), int(seen))
        if state["stopped"]:
            batches.epoch = 10**9
        restore_all(self.model, kept_from(checkpoint.part("kept"), state.get("kept", ()), rank))
        # a process that the run did not have before keeps the numbers that its stage began with
        if (saved := checkpoint.tensors.get(_random("cpu", rank))) is not None:
            torch.set_rng_state(saved)
        if self.settings.device.type == "cuda" and (saved := checkpoint.tensors.get(_random("cuda", rank))) is not None:
            torch.cuda.set_rng_state(saved, self.settings.device)


@dataclass
class _State:
    """What changes while a stage runs."""

    stage: Stage
    batches: Batches
    balance: Balance
    optimizer: torch.optim.Optimizer
    plateau: Plateau
    moving: Mapping[str, nn.Parameter]
    stopped: bool = False

    @property
    def players(self) -> list[str | None]:
        """Those of the stage's players that have something to move."""
        owners = {None, *map(owner_of, self.moving)}
        return [player for player in self.stage.players if player in owners]


def make_optimizer(selection: Selection | None, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Adam or SGD with momentum; Adam with its usual learning rate when nothing is said."""
    if selection is None or selection.name == "adam":
        lr = 1e-3 if selection is None else float(selection["lr"])
        decay = 0.0 if selection is None else float(selection["weight_decay"])
        return torch.optim.Adam(parameters, lr=lr, weight_decay=decay)
    return torch.optim.SGD(
        parameters, lr=float(selection["lr"]), momentum=float(selection["momentum"]),
        weight_decay=float(selection["weight_decay"]),
    )  # fmt: skip


def _judged(record: Mapping[str, Any], metric: str) -> float:
    """What a stop rule looks at: the validation metric (its mean where there are several outputs), else the loss."""
    name = f"validation.{metric}"
    found = [value for key, value in record.items() if key == name or key.startswith(f"{name}.")]
    return float(sum(found) / len(found) if found else record["loss"])


def _is_better(value: float, best: float, higher: bool) -> bool:
    if math.isnan(value) or math.isnan(best):
        return not math.isnan(value)
    return value > best if higher else value < best


def _random(kind: str, rank: int) -> str:
    """The name of a process's random state in a checkpoint."""
    return f"random.{kind}" if rank == 0 else f"random.{kind}.{rank}"


def _is_no_number(problem: EnergyError) -> bool:
    """Whether scores were refused because they are NaN or inf."""
    return isinstance(problem, DataError) and any(one.code == "E0515" for one in problem.diagnostics)


__all__ = ["Interrupted", "NotFinite", "Progress", "Settings", "Trainer", "make_optimizer"]
