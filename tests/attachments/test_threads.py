"""What a second user finds out: threads that share a model, second derivatives, pickles."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import floater
from floater.errors import ArgumentError, AttachmentError, LengthError, SavedError, TimesError

from .attach_models import ARCHITECTURES, MOVING, VOCABULARY, batch, make


@pytest.mark.parametrize("baked", [False, True])
def test_threads_can_share_an_attached_model(baked: bool) -> None:
    model = make("bert")
    attached = floater.attach(model, MOVING)
    inputs = [torch.randint(3, VOCABULARY, (2, length)) for length in range(5, 25)]

    @torch.no_grad()
    def run(ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = model(input_ids=ids).logits
        return out

    alone = [run(ids) for ids in inputs]
    if baked:
        attached.bake(30)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(2):
            for together, single in zip(pool.map(run, inputs), alone, strict=True):
                torch.testing.assert_close(together, single, rtol=1e-5, atol=1e-5)


def test_threads_can_share_a_flow() -> None:
    flow = MOVING.build(3, 8)
    expected = MOVING.build(3, 8)
    expected.load_state_dict(flow.state_dict())
    lengths = [7, 200, 33, 512, 90, 1000, 3]
    with torch.no_grad(), ThreadPoolExecutor(4) as pool:
        tables = list(pool.map(lambda length: flow.table(length).detach(), lengths))
        for length, table in zip(lengths, tables, strict=True):
            assert torch.equal(table, expected.table(length))


@pytest.mark.parametrize("gradient", ["discrete", "adjoint"])
def test_second_derivatives_are_refused_and_autograd_gives_them(gradient: Any) -> None:
    dynamics, start = (
        floater.MLPDynamics(3).double(),
        torch.ones(2, 3, dtype=torch.float64, requires_grad=True),
    )
    times = torch.tensor([0.5, 1.0])

    def second(kind: Any) -> torch.Tensor:
        states = floater.solve(dynamics, start, times, gradient=kind)
        (first,) = torch.autograd.grad(states.sum(), start, create_graph=True)
        return torch.autograd.grad(first.square().sum(), start)[0]

    assert second("autograd").abs().max() > 0
    with pytest.raises(
        ArgumentError, match=r"Second derivatives \(create_graph=True\) need gradient=\"autograd\""
    ):
        second(gradient)


@pytest.mark.parametrize("positions", ["keep", "replace"])
@pytest.mark.parametrize(
    "name",
    [name for name in ARCHITECTURES if name != "wav2vec2"],  # torch cannot pickle its weight norm
)
def test_attached_models_can_be_pickled(name: str, positions: Any) -> None:
    model, inputs = make(name), batch(name)
    floater.attach(model, MOVING, positions=positions)
    twin = pickle.loads(pickle.dumps(model))
    with torch.no_grad():
        assert torch.equal(twin(**inputs).logits, model(**inputs).logits)


@pytest.mark.parametrize("name", ["roberta", "xlm-roberta"])
def test_robertas_limit_is_named_too(name: str) -> None:
    model = make(name, max_position_embeddings=22)
    floater.attach(model, floater.FlowConfig())
    with torch.no_grad():
        model(input_ids=torch.randint(3, VOCABULARY, (1, 20)))
        with pytest.raises(LengthError, match=r"has 20 positions, but 21 are needed"):
            model(input_ids=torch.randint(3, VOCABULARY, (1, 21)))


def test_a_baked_attachment_refuses_to_be_trained() -> None:
    model, inputs = make("bert").train(), batch("bert")
    attached = floater.attach(model, MOVING)
    attached.bake(20)
    with pytest.raises(
        AttachmentError, match=r"A baked attachment cannot be trained, .*call unbake\(\) first"
    ):
        model(**inputs)
    attached.requires_grad_(False)
    model(**inputs).logits.sum().backward()


def test_more_mistakes_are_named() -> None:
    attached = floater.attach(make("bert"), MOVING)
    with (
        pytest.raises(TimesError, match="`times` must be real numbers, but are list"),
        attached.at(["a"] * 3),  # type: ignore[list-item]
    ):
        pass
    nothing: Any = None
    with pytest.raises(ArgumentError, match="`dynamics` must be a module or a function"):
        floater.solve(nothing, torch.ones(1), torch.ones(1))
    with pytest.raises(ArgumentError, match="`initial` must be finite, but contains NaN"):
        floater.solve(floater.ZeroDynamics(1), torch.tensor([float("nan")]), torch.ones(1))
    with pytest.raises(SavedError, match="`auto_class` must be a model class"):
        floater.from_pretrained("bert", "anywhere")
    assert floater.SinusoidalConfig().build(1, 4)([0.0, 0.1]).shape == (2, 1, 4)
