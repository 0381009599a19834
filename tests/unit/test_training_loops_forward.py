"""A plan in the loops of Lightning, of Hugging Face's Trainer and of Accelerate: the same weights as without it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import torchwise
import torchwise.runtime.training
from live_decisions import make_decision
from torchwise.errors import InputError, UnsupportedError
from torchwise.plan import CHOICES, EAGER, Plan
from torchwise.records import Decision
from torchwise.runtime.training import PlannedForward
from torchwise.runtime.training import forward as forward_module
from torchwise.workload.identity import describe_example, structure
from torchwise.workload.workload import Example

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import pytorch_lightning as pl

PLAN = Plan(threads=3)  # the same numbers, and seen to be taken

DRAW = torch.Generator().manual_seed(5)
X, Y = torch.randn(12, 4, generator=DRAW), torch.randint(0, 3, (12,), generator=DRAW)

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("two_threads")]


def net() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.2), torch.nn.GELU(), torch.nn.Linear(8, 3)
    )


def decide_training(model: torch.nn.Module, plan: Plan = PLAN, *args: torch.Tensor, **kwargs: Any) -> Decision:
    found = make_decision(model, plan)
    example = describe_example(Example(args or (X[:4],), kwargs))
    return replace(found, inputs=(example,), workload=replace(found.workload, mode="training"))


def equal(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return list(ours) == list(theirs) and all(torch.equal(ours[name], theirs[name]) for name in ours)


def train(model: Any, step_begins: Callable[[], None] = lambda: None, autocast: bool = False, steps: int = 4) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1)
    for number in range(steps):
        rows = slice(4 * (number % 3), 4 * (number % 3) + 4)
        step_begins()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = torch.nn.functional.cross_entropy(model(X[rows]), Y[rows])
        loss.backward()
        optimizer.step()


@pytest.fixture
def bare() -> torch.nn.Module:
    model = net()
    train(model)
    return model


def test_a_plain_loop_trains_to_the_same_weights_and_by_the_plan(bare: torch.nn.Module) -> None:
    model = net()
    planned = PlannedForward(model, decide_training(model))
    train(model, planned.between_steps)
    assert planned.statistics.optimized == 3  # of four steps all but the first
    assert planned.statistics.original == {}
    assert equal(model.state_dict(), bare.state_dict())


def test_a_model_under_autocast_is_planned_under_it() -> None:
    model, bare = net(), net()
    train(bare, autocast=True)
    scene = forward_module.UnderAutocast(net(), "cpu", torch.bfloat16)
    planned = PlannedForward(model, decide_training(scene))
    train(model, planned.between_steps, autocast=True)
    assert planned.statistics.optimized == 3
    assert equal(model.state_dict(), bare.state_dict())


def test_a_decision_for_full_precision_is_not_taken_under_autocast(caplog: pytest.LogCaptureFixture) -> None:
    model, bare = net(), net()
    train(bare, autocast=True)
    planned = PlannedForward(model, decide_training(model))
    train(model, planned.between_steps, autocast=True)
    assert planned.statistics.optimized == 0
    assert "the decision is stale" in caplog.text
    assert equal(model.state_dict(), bare.state_dict())


def test_a_plan_that_fails_is_not_taken_and_the_loop_does_not_notice(
    bare: torch.nn.Module, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = net()
    unrealized = replace(CHOICES["backend", "inductor"], realized_by=None)
    monkeypatch.setitem(CHOICES, unrealized.key, unrealized)
    planned = PlannedForward(model, decide_training(model, Plan(backend="inductor")))
    train(model, planned.between_steps)
    assert "training goes on as written: the plan failed (UnsupportedError)" in caplog.text
    assert equal(model.state_dict(), bare.state_dict())


def test_to_stay_with_eager_is_no_failure(bare: torch.nn.Module, caplog: pytest.LogCaptureFixture) -> None:
    model = net()
    planned = PlannedForward(model, decide_training(model, EAGER))
    train(model, planned.between_steps)
    assert caplog.text == ""
    assert equal(model.state_dict(), bare.state_dict())


def test_what_is_outside_of_training_is_answered_as_written() -> None:
    model = net()
    planned = PlannedForward(model, decide_training(model))
    train(model, planned.between_steps)
    before = planned.statistics.optimized
    model.eval()
    model(X[:4])
    model.train()
    with torch.no_grad():
        model(X[:4])
    assert planned.statistics.optimized == before


def test_hooks_run_once_a_call() -> None:
    model, calls = net(), []
    model.register_forward_hook(lambda *_: calls.append(1))
    planned = PlannedForward(model, decide_training(model))
    train(model, planned.between_steps)
    assert len(calls) == 4


def test_what_is_set_on_the_model_is_read_and_what_a_call_sets_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cooling(torch.nn.Linear):
        temperature, calls = 1.0, 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls = self.calls + 1
            return super().forward(x) / self.temperature

    monkeypatch.setattr(forward_module, "tune", lambda call, *_args, **_options: decide_training(call))
    model = Cooling(4, 3)
    planned = PlannedForward(model)
    for number in range(1, 6):
        planned.between_steps()
        model.temperature = float(number)
        model.again = number
        torch.testing.assert_close(model(X[:4]) * number, torch.nn.functional.linear(X[:4], model.weight, model.bias))
        assert model.calls == number
        del model.again
    assert planned.statistics.optimized == 4


def test_closing_gives_the_forward_back() -> None:
    model = net()
    planned = PlannedForward(model, decide_training(model))
    train(model, planned.between_steps)
    planned.close()
    assert "forward" not in vars(model)
    PlannedForward(model).close()  # nothing is left that would refuse it


def test_a_copy_and_a_pickle_hold_no_plan(tmp_path: Path) -> None:
    model = net()
    PlannedForward(model, decide_training(model))
    twin = copy.deepcopy(model)
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    for other in (twin, loaded):
        assert not isinstance(other.forward, PlannedForward)
        assert torch.equal(other.eval()(X), model.eval()(X))
        assert other.forward.__self__ is other


def test_a_loop_that_never_calls_the_model_hears_of_it(caplog: pytest.LogCaptureFixture) -> None:
    planned = PlannedForward(net())
    for _ in range(3):
        planned.between_steps()
    assert caplog.text.count("did not call the forward of Sequential") == 1


def test_bad_input_is_refused() -> None:
    model = net()
    with pytest.raises(InputError, match="decision is for inference"):
        PlannedForward(model, make_decision(model, PLAN, X))
    with pytest.raises(InputError, match="the options are calls, but with a decision"):
        PlannedForward(model, decide_training(model), calls=5)
    PlannedForward(model)
    with pytest.raises(InputError, match="planned already"):
        PlannedForward(model)


def test_without_a_decision_what_was_seen_is_tuned(monkeypatch: pytest.MonkeyPatch, bare: torch.nn.Module) -> None:
    asked: list[Any] = []

    def tune(call: Any, args: Any, kwargs: Any, **options: Any) -> Decision:
        asked.append((structure(call), args, kwargs, options))
        return decide_training(call)

    monkeypatch.setattr(forward_module, "tune", tune)
    model = net()
    planned = PlannedForward(model, calls=77)
    train(model, planned.between_steps)
    ((code, args, kwargs, options),) = asked
    assert code == structure(net())
    assert torch.equal(args[0], X[:4])
    assert kwargs == {}
    assert (options["mode"], options["calls"]) == ("training", 77)
    assert planned.statistics.optimized == 3
    assert equal(model.state_dict(), bare.state_dict())


class Scorer(pl.LightningModule):
    def __init__(self, direct: bool = True) -> None:
        super().__init__()
        self.net, self.direct = net(), direct

    def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def fit(model: Any, folder: Path, *callbacks: Any, **options: Any) -> None:
    trainer = pl.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=folder,
        max_epochs=2,
        callbacks=list(callbacks),
        **options,
    )
    torch.manual_seed(1)
    trainer.fit(model, DataLoader(TensorDataset(X, Y), batch_size=4))


@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 3, "gradient_clip_val": 0.5}])
def test_lightning_trains_to_the_same_weights(options: dict[str, Any], tmp_path: Path) -> None:
    bare, model = Scorer(), Scorer()
    fit(bare, tmp_path, **options)
    callback = torchwise.runtime.training.lightning_callback(decide_training(net()), part="net")
    fit(model, tmp_path, callback, **options)
    assert equal(model.state_dict(), bare.state_dict())
    assert callback.planned.decision.plan == PLAN
    assert "forward" not in vars(model.net)


def test_lightning_takes_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    close = PlannedForward.close
    monkeypatch.setattr(PlannedForward, "close", lambda self: (counts.append(self.statistics.optimized), close(self)))
    fit(Scorer(), tmp_path, torchwise.runtime.training.lightning_callback(decide_training(net()), part="net"))
    assert counts[0] == 2 * 3 - 1


def test_lightning_hears_what_it_must_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Scorer has no forward"):
        fit(Scorer(), tmp_path, torchwise.runtime.training.lightning_callback())
    with pytest.raises(InputError, match="part is 'nets', but Scorer has net"):
        fit(Scorer(), tmp_path, torchwise.runtime.training.lightning_callback(part="nets"))


def test_a_whole_step_in_lightnings_manual_form_trains_alike(tmp_path: Path) -> None:
    class Manual(Scorer):
        def __init__(self, plan: Plan | None) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.plan, self.step = plan, None

        def on_train_start(self) -> None:
            step = torchwise.TrainStep(self.net, torch.nn.functional.cross_entropy, self.optimizers().optimizer)
            self.step = torchwise.apply(step, make_decision(step, self.plan, X[:4], Y[:4])) if self.plan else step

        def training_step(self, batch: list[torch.Tensor], _index: int) -> None:  # type: ignore[override]
            self.step(*batch)

    bare, model = Manual(None), Manual(PLAN)
    fit(bare, tmp_path)
    fit(model, tmp_path)
    assert model.step.statistics.optimized == 6
    assert equal(model.net.state_dict(), bare.net.state_dict())


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = (torch.arange(6) * (index + 1)) % 32
        return {"input_ids": ids, "attention_mask": torch.ones(6, dtype=torch.long), "labels": torch.tensor(index % 2)}


def bert() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    return transformers.BertForSequenceClassification(config)


@pytest.fixture
def accelerate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield the library, without the state that it keeps for a whole process, such as a precision."""
    found = pytest.importorskip("accelerate")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found.state.AcceleratorState._reset_state(True)
    yield found
    found.state.AcceleratorState._reset_state(True)


def train_bert(folder: Path, callbacks: list[Any], **options: Any) -> tuple[Any, Any]:
    transformers = pytest.importorskip("transformers")
    arguments = transformers.TrainingArguments(
        str(folder),
        num_train_epochs=2,
        per_device_train_batch_size=4,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        seed=3,
        **options,
    )
    model = bert()
    trainer = transformers.Trainer(model, arguments, train_dataset=Rows(), callbacks=callbacks)
    trainer.train()
    return model, trainer


def patch_tune(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> None:
    """Have the search end with this plan at once."""

    def tune(call: Any, args: Any, kwargs: Any, **_options: Any) -> Decision:
        return decide_training_call(call, plan, args, kwargs)

    monkeypatch.setattr(forward_module, "tune", tune)


def decide_training_call(call: Any, plan: Plan, args: Any, kwargs: Any) -> Decision:
    found = make_decision(call, plan)
    inputs = (describe_example(Example(tuple(args), kwargs)),)
    return replace(found, inputs=inputs, workload=replace(found.workload, mode="training"))


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2, "bf16": True}], ids=["plain", "bf16"])
def test_the_trainer_of_transformers_trains_to_the_same_weights(
    options: dict[str, Any], accelerate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare, _ = train_bert(tmp_path, [], **options)
    patch_tune(monkeypatch, PLAN)
    counts: list[int] = []
    close = PlannedForward.close
    monkeypatch.setattr(PlannedForward, "close", lambda self: (counts.append(self.statistics.optimized), close(self)))
    callback = torchwise.runtime.training.trainer_callback()
    model, trainer = train_bert(tmp_path, [callback], **options)
    assert equal(model.state_dict(), bare.state_dict())
    assert counts[0] > 0
    trainer.train()  # once more, by the plan once more
    assert counts[1] > 0


def test_accelerate_trains_to_the_same_weights(accelerate: Any) -> None:
    def run(plan: Plan | None) -> tuple[torch.nn.Module, PlannedForward | None]:
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        model = net()
        planned = PlannedForward(model, decide_training(model, plan)) if plan else None
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        wrapped, optimizer, loader = accelerator.prepare(
            model, optimizer, DataLoader(TensorDataset(X, Y), batch_size=4)
        )
        torch.manual_seed(1)
        for _ in range(2):
            for x, y in loader:
                if planned:
                    planned.between_steps()
                with accelerator.accumulate(wrapped):
                    accelerator.backward(torch.nn.functional.cross_entropy(wrapped(x), y))
                    optimizer.step()
                    optimizer.zero_grad()
        return accelerator.unwrap_model(wrapped), planned

    (bare, _), (model, planned) = run(None), run(PLAN)
    assert planned is not None
    assert planned.statistics.optimized == 5
    assert equal(model.state_dict(), bare.state_dict())


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning", "transformers"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(UnsupportedError, match="pip install 'pytorch-lightning"):
        torchwise.runtime.training.lightning_callback()
    with pytest.raises(UnsupportedError, match=r"pip install .*transformers"):
        torchwise.runtime.training.trainer_callback()


def test_the_names_are_there_and_no_other() -> None:
    for name in torchwise.runtime.training.__all__:
        assert getattr(torchwise.runtime.training, name) is not None
    with pytest.raises(AttributeError, match="no_such"):
        torchwise.runtime.training.no_such  # noqa: B018
