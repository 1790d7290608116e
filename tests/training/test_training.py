from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import AutoModelForMaskedLM, Trainer, TrainerCallback, TrainingArguments

import floater
from attachments.attach_models import PAD, VOCABULARY, make
from floater.errors import ArgumentError, AttachmentError
from floater.training import UpdateEvery, freeze_flow, parameter_groups, token_loss

MOVING = floater.FlowConfig(pace="free", zero_init=False, init_scale=1.0, initial_scale=0.7)


class Sentences(Dataset[dict[str, Tensor]]):
    """Rows of different numbers of labels, so that a mean of means is not the mean."""

    def __init__(self, count: int = 8) -> None:
        generator = torch.Generator().manual_seed(3)
        self.ids = torch.randint(3, VOCABULARY, (count, 9), generator=generator)
        self.labels = self.ids.clone()
        for row in range(count):
            self.labels[row, row % 7 + 1 :] = -100
        self.ids[0, 5:] = PAD

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {
            "input_ids": self.ids[row],
            "attention_mask": (self.ids[row] != PAD).long(),
            "labels": self.labels[row],
        }


class Gradients(TrainerCallback):
    """Looks at gradients before each optimiser step."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Tensor]] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model = kwargs["model"]
        self.seen.append(
            {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        )


def trainer(model: Any, folder: Path, callbacks: list[TrainerCallback], **settings: Any) -> Trainer:
    values: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": 1,
        "report_to": "none",
        "max_grad_norm": 0.0,
        "disable_tqdm": True,
        "use_cpu": True,
        "save_strategy": "no",
        "learning_rate": 1e-3,
        "dataloader_pin_memory": False,
        **settings,
    }
    return Trainer(
        model=model,
        args=TrainingArguments(**values),
        train_dataset=Sentences(),
        compute_loss_func=token_loss(),
        callbacks=callbacks,
    )


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert"])
def test_accumulated_gradients_are_those_of_the_big_batch(name: str, tmp_path: Path) -> None:
    found = []
    for size, steps in ((8, 1), (1, 8)):
        model = make(name)
        made = floater.attach(model, MOVING)
        look = Gradients()
        run = trainer(
            model,
            tmp_path,
            [look],
            per_device_train_batch_size=size,
            gradient_accumulation_steps=steps,
        )
        run.train()
        flow: Any = made.encoder
        assert flow.solves == 1
        found.append(look.seen[0])
        assert "fused" in run.args.optim
    assert found[0].keys() == found[1].keys()
    assert any(key.startswith("floater.") for key in found[0])
    largest = max(float(grad.abs().max()) for grad in found[0].values())
    for key, whole in found[
        0
    ].items():  # a key's bias has no gradient at all, but rounding gives it some
        torch.testing.assert_close(found[1][key], whole, rtol=1e-5, atol=1e-6 * largest)


def test_update_every_k_steps(tmp_path: Path) -> None:
    model = make("bert")
    made = floater.attach(model, MOVING)
    look = Gradients()
    trainer(
        model, tmp_path, [UpdateEvery(3), look], max_steps=6, per_device_train_batch_size=4
    ).train()
    moved = [
        any(key.startswith("floater.") and bool(grad.any()) for key, grad in step.items())
        for step in look.seen
    ]
    assert moved == [True, False, False, True, False, False]
    assert all(parameter.requires_grad for parameter in made.parameters())
    flow: Any = made.encoder
    assert flow.solves == 3  # at the start and after each of the two updates


def test_parameter_groups() -> None:
    model = make("bert")
    made = floater.attach(model, MOVING)
    groups = parameter_groups(
        model, lr=1e-3, weight_decay=0.1, flow_lr_multiple=5.0, flow_weight_decay=0.01
    )
    assert [(group["lr"], group["weight_decay"]) for group in groups] == [
        (1e-3, 0.1),
        (1e-3, 0.0),
        (5e-3, 0.01),
        (5e-3, 0.0),
    ]
    grouped = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(grouped) == sorted(id(parameter) for parameter in model.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())
    freeze_flow(model)
    assert not any(parameter.requires_grad for parameter in made.parameters())
    frozen = {id(parameter) for parameter in made.parameters()}
    grouped = [
        id(parameter) for group in parameter_groups(model, lr=1e-3) for parameter in group["params"]
    ]
    assert sorted(grouped) == sorted(
        id(parameter) for parameter in model.parameters() if id(parameter) not in frozen
    )
    with pytest.raises(ArgumentError, match="`flow_lr_multiple` must be positive, but is 0"):
        parameter_groups(model, lr=1e-3, flow_lr_multiple=0)
    with pytest.raises(ArgumentError, match="`steps` must be a positive integer, but is 0"):
        UpdateEvery(0)
    made.detach()
    with pytest.raises(AttachmentError, match="has no attachment"):
        parameter_groups(model, lr=1e-3)


def test_checkpoints_of_the_trainer_carry_the_attachment_and_resume(tmp_path: Path) -> None:
    settings = {
        "max_steps": 4,
        "save_strategy": "steps",
        "save_steps": 2,
        "per_device_train_batch_size": 4,
        "seed": 7,
    }

    def run(folder: Path, resume: str | None = None) -> Any:
        model = make("bert")
        floater.attach(model, MOVING)
        trainer(model, folder, [], **settings).train(resume_from_checkpoint=resume)
        return model.eval()

    whole = run(tmp_path / "whole")
    half = str(tmp_path / "whole" / "checkpoint-2")
    resumed = run(tmp_path / "resumed", resume=half)
    for key, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[key], value), key
    loaded = floater.from_pretrained(AutoModelForMaskedLM, tmp_path / "whole" / "checkpoint-4")
    ids = Sentences().ids
    with torch.no_grad():
        assert torch.equal(loaded(input_ids=ids).logits, whole(input_ids=ids).logits)


TWO = """
import os, sys, torch
sys.path[:0] = [os.environ["TESTS"], os.environ["TESTS"] + "/training"]
from attachments.attach_models import make
from test_training import MOVING, Sentences
import floater
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
model = make("bert").train()
floater.attach(model, MOVING)
parallel = torch.nn.parallel.DistributedDataParallel(model)
ids = Sentences().ids[rank * 4 : rank * 4 + 4, : 9 - 2 * rank]   # of different lengths
parallel(input_ids=ids).logits.square().mean().backward()
if rank == 0:
    torch.save({n: p.grad for n, p in model.named_parameters()}, os.environ["OUT"])
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_give_the_gradient_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, out = tmp_path / "two.py", tmp_path / "gradients.pt"
    script.write_text(TWO, encoding="utf-8")
    monkeypatch.setenv("TESTS", str(Path(__file__).parents[1]))
    monkeypatch.setenv("OUT", str(out))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launch = [
        "-m",
        "torch.distributed.run",
        "--nproc_per_node=2",
        f"--master_port={port}",
        str(script),
    ]
    done = subprocess.run(
        [sys.executable, *launch], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    model = make("bert").train()
    floater.attach(model, MOVING)
    for rank in range(2):
        ids = Sentences().ids[rank * 4 : rank * 4 + 4, : 9 - 2 * rank]
        (model(input_ids=ids).logits.square().mean() / 2).backward()
    together = torch.load(out, weights_only=True)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(together[name], parameter.grad, rtol=1e-5, atol=1e-6)
