"""From a trained model to the encodings in its run folder, and to plots of them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, MarianConfig, MarianMTModel

import floater
from floater import room
from floater.attachments import Attachment
from floater.cli import main
from floater.encoders import EncoderConfig
from floater.errors import ArgumentError, FloaterError
from floater.report import figures
from floater.runs.encodings import ENCODINGS, Encodings
from floater.runs.folder import RunFolder
from floater.tasks import task_from
from floater.training.extract_encodings import extract_encodings, load_model
from floater.training.run import run
from translation.corpora import settings

from .folders import circle


def marian() -> MarianMTModel:
    sizes: dict[str, Any] = {
        f"{stack}_{name}": value
        for stack in ("encoder", "decoder")
        for name, value in SIZES.items()
    }
    model = MarianMTModel(
        MarianConfig(vocab_size=11, d_model=8, max_position_embeddings=16, pad_token_id=0, **sizes)
    )
    model.eval()
    return model


SIZES = {"layers": 1, "attention_heads": 2, "ffn_dim": 8}


def attached(
    config: EncoderConfig, sites: str, positions: str = "replace", **more: bool
) -> Attachment:
    return floater.attach(marian(), config, sites=sites, positions=positions, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sites", "names"),
    [
        ("input", ["encoder input", "decoder input"]),
        ("blocks", ["encoder block 1", "decoder block 1"]),
        (
            "qkv",
            [
                f"{where} {part}"
                for where in ("encoder block 1", "decoder block 1", "decoder block 1 cross")
                for part in "qkv"
            ],
        ),
    ],
)
@pytest.mark.parametrize("per_stack", [False, True])
def test_every_site_has_its_name_and_its_table(
    sites: str, names: list[str], per_stack: bool
) -> None:
    attachment = attached(floater.LearnedConfig(max_length=40), sites, per_stack=per_stack)
    encodings = extract_encodings(attachment, 20)
    assert encodings is not None
    assert list(encodings.sites) == names
    assert encodings.tables.shape == (len(names), 20, 8)
    assert encodings.times[3] == pytest.approx(0.3)
    weights = [encoder.weight.detach() for encoder in attachment.encoders.values()]  # type: ignore[operator]
    expected = torch.cat(
        weights[::-1] if per_stack else weights, 1
    )  # groups are sorted: the decoder is first
    assert np.array_equal(encodings.tables, expected[:20].numpy().transpose(1, 0, 2))


def test_sites_are_named_for_the_layers_that_use_them() -> None:
    """A change of the table of one site changes the output of the projection of that name only."""
    model = marian()
    attachment = floater.attach(
        model, floater.LearnedConfig(max_length=8), sites="qkv", positions="keep"
    )
    site = attachment.site_names().index("decoder block 1 cross k")
    seen: dict[str, list[torch.Tensor]] = {}
    block = model.model.decoder.layers[0]
    layers = {
        f"{kind} {part}": getattr(getattr(block, kind), f"{part}_proj")
        for kind in ("self_attn", "encoder_attn")
        for part in "qkv"
    }
    for name, layer in layers.items():
        layer.register_forward_hook(
            lambda _, __, out, name=name: seen.setdefault(name, []).append(out.detach().clone())
        )
    tokens = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        model(input_ids=tokens, decoder_input_ids=tokens)
        attachment.encoder.weight[:, site] += 1.0  # type: ignore[index, operator]
        model(input_ids=tokens, decoder_input_ids=tokens)
    assert [name for name, (before, after) in seen.items() if not torch.equal(before, after)] == [
        "encoder_attn k"
    ]


def test_the_built_in_sinusoid_past_its_table() -> None:
    encodings = extract_encodings(
        attached(floater.NoPositionConfig(), "input", "keep"), 24
    )  # the table has 16 rows
    assert encodings is not None
    assert (encodings.sites, encodings.kind) == (("input",), "own")
    phase = np.arange(24)[:, None] / 10_000 ** (np.arange(0, 8, 2) / 8)
    assert np.allclose(
        encodings.tables[0], np.concatenate([np.sin(phase), np.cos(phase)], 1), atol=1e-5
    )


def test_a_built_in_learned_table_ends() -> None:
    bert = BertModel(
        BertConfig(
            vocab_size=9,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=12,
        )
    )
    encodings = extract_encodings(
        floater.attach(bert, floater.NoPositionConfig(), sites="input"), 24
    )
    assert encodings is not None
    assert np.array_equal(
        encodings.tables[0], bert.embeddings.position_embeddings.weight.detach().numpy()
    )


def test_where_there_is_no_table() -> None:
    assert extract_encodings(attached(floater.RotaryConfig(), "qkv"), 8) is None
    assert extract_encodings(attached(floater.NoPositionConfig(), "input"), 8) is None


def test_a_learned_table_is_shown_as_far_as_it_goes() -> None:
    encodings = extract_encodings(attached(floater.LearnedConfig(max_length=5), "input"), 24)
    assert encodings is not None
    assert len(encodings.times) == 5


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    positions = {
        "encoder": {"kind": "flow", "pace": "free", "zero_init": False, "initial_scale": 0.1},
        "sites": "blocks",
    }
    task = task_from(settings(folder, positions=positions, training={"updates": 2}))
    run(task, folder / "run")
    return folder / "run"


def floater_plot(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["floater", "plot", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        main()
    if caught.value.code:
        raise AssertionError(caught.value.code)


def test_a_run_stores_the_encodings_of_its_model(trained: Path) -> None:
    encodings = Encodings.read(trained)
    assert encodings is not None
    facts = RunFolder(trained).facts()
    assert encodings.trained == facts["longest"]
    assert len(encodings.times) == 2 * facts["longest"]
    model = floater.from_pretrained(MarianMTModel, trained / "model")
    attachment = floater.attachment(model)
    assert attachment is not None
    expected = attachment.encoder.table(len(encodings.times)).detach().numpy()  # type: ignore[operator]
    assert np.allclose(encodings.tables, expected.transpose(1, 0, 2), atol=1e-6)
    assert (encodings.kind, encodings.description) == ("flow", "flow at blocks")


def test_plot_writes_the_file_of_an_older_run(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = Encodings.read(trained)
    assert stored is not None
    older = tmp_path / "older"
    shutil.copytree(trained, older, ignore=shutil.ignore_patterns(ENCODINGS, "checkpoints"))
    floater_plot(monkeypatch, older, "--out", tmp_path / "figure.svg", "--length", "6")
    assert (tmp_path / "figure.svg").read_text().startswith("<?xml")
    again = Encodings.read(older)
    assert again is not None
    assert np.array_equal(again.tables, stored.tables)


@pytest.mark.parametrize("kind", ["heatmap", "trajectory", "similarity", "spectrum"])
def test_every_kind_of_plot_of_a_model(
    kind: str, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    floater_plot(
        monkeypatch,
        trained / "model",
        "--kind",
        kind,
        "--site",
        "encoder block 1",
        "--length",
        "12",
    )
    assert (tmp_path / f"model-{kind}.png").read_bytes().startswith(b"\x89PNG")
    assert not (trained / "model" / ENCODINGS).exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--kind", "pie"],
            "`kind` must be one of heatmap, trajectory, similarity, spectrum, but is 'pie'",
        ),
        (["--out", "figure.bmp"], "`out` must end in .png or .svg, but is 'figure.bmp'"),
        (
            ["--length", "10000000"],
            "Invalid value for '--length': Input should be less than or equal to 100000",
        ),
        (
            ["--site", "cellar"],
            "`site` must be one of 'encoder block 1', 'decoder block 1', but is 'cellar'",
        ),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str],
    message: str,
    trained: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(AssertionError, match="2"):
        floater_plot(monkeypatch, trained, *arguments)
    printed = capsys.readouterr().err
    assert printed.startswith(f"floater: {message}")
    assert printed.count("\n") == 1


def test_a_folder_that_is_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AssertionError, match="2"):
        floater_plot(monkeypatch, tmp_path)
    assert "must be a run, or a model that floater.save_pretrained wrote" in capsys.readouterr().err


def test_a_class_that_transformers_does_not_have(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["os.system"]}')
    with pytest.raises(
        ArgumentError, match=r"must hold a model of transformers, but names the class 'os\.system'"
    ):
        load_model(tmp_path)


def test_tables_that_do_not_fit_into_memory_are_refused_before_they_are_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attachment = attached(floater.FlowConfig(), "blocks")
    monkeypatch.setattr(room, "available_memory", lambda: 1_000_000)
    monkeypatch.setattr(
        attachment, "site_tables", lambda length: pytest.fail("nothing may be computed")
    )
    with pytest.raises(
        FloaterError,
        match=(
            r"10,000 positions at \d+ sites of \d+ dimensions would take .* memory, but 500 kB may"
        ),
    ):
        extract_encodings(attachment, 10_000)


@pytest.mark.parametrize(
    ("kind", "drawn"),
    [("heatmap", 4000), ("trajectory", 4000), ("similarity", 2000), ("spectrum", 20_000)],
)
def test_long_tables_are_thinned_and_the_title_says_so(
    kind: str, drawn: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = circle(1, 20_000, 2, trained=7000)
    seen: list[tuple[int, Encodings]] = []
    draw = figures.PLOT_KINDS[kind]

    def watched(figure: Any, axis: Any, table: Any, encodings: Encodings) -> None:
        draw(figure, axis, table, encodings)
        seen.append((len(table), encodings))

    titles: list[str] = []
    monkeypatch.setitem(figures.PLOT_KINDS, kind, watched)
    monkeypatch.setattr(
        "matplotlib.figure.Figure.suptitle", lambda figure, title, **more: titles.append(title)
    )
    figures.plot(long, kind, tmp_path / "figure.svg", title="Long")
    ((rows, encodings),) = seen
    assert rows == drawn
    every = 20_000 // drawn
    assert (encodings.every, encodings.trained) == (every, 7000 // every)
    assert np.array_equal(encodings.tables, long.tables[:, ::every])
    assert (f"one of every {every} positions" in titles[-1]) == (every > 1)
