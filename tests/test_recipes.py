"""Config files of every odd kind: each is read, or refused in one line and in no time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from command_line import mistake
from floater import recipes
from floater.config import Config
from floater.errors import ConfigError


def bomb(depth: int, width: int = 9) -> str:
    """Lists of lists of …: few bytes that stand for width ** depth values."""
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * width)}]" for i in range(1, depth)]
    return "\n".join(lines)


MERGED = (
    "a: &a {x: 1}\nb: &b {<<: ["
    + ", ".join(["*a"] * 400)
    + "]}\nc: &c {<<: ["
    + ", ".join(["*b"] * 400)
    + "]}\n"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (bomb(9), "must hold at most 100,000 values, but holds more with its aliases"),
        (bomb(40), "must hold at most 100,000 values"),
        (MERGED, "must hold at most 100,000 values"),
        ("a: &a [*a]", "An alias (*name) must not contain itself"),
        ("[" * 5000, "must be nested at most 40 deep"),
        ("a: " + "{b: " * 200 + "1" + "}" * 200, "must be nested at most 40 deep"),
        ("1: 2", "keys must be text, but one is 1 (int)"),
        ("training: {null: 2}", "training: keys must be text, but one is None"),
        ("on: 2", "keys must be text, but one is True"),
        ("2024-01-01: 2", "keys must be text, but one is datetime.date(2024, 1, 1)"),
        ("? [1, 2]\n: 3", "not valid YAML: found unhashable key"),
        ("a: 2024-13-45", "holds a value that cannot be read: month must be in 1..12"),
        ("a: " + "9" * 5000, "holds a value that cannot be read: Exceeds the limit"),
        ("a: " + "9" * 400, "must be a number below 1e300"),
        ('a: "\\ud800"', "must be text that can be written"),
        ('a: "x\\0y"', "must be text that can be written"),
        ('"\\0": 1', "must be text that can be written"),
        ("a: \x01", "not valid YAML: unacceptable character #x0001"),
        (
            "a: !!python/object/apply:os.system [ls]",
            "not valid YAML: could not determine a constructor",
        ),
        ("extends: [a, b]", "`extends` must be the name of a config file"),
        ("a: b\n" * 300_000, "must be a config file of at most 1,000,000 bytes"),
        ("--- 1\n--- 2", "not valid YAML"),
    ],
)
def test_odd_files_are_refused_in_one_line_and_at_once(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(text, encoding="utf-8")
    begun = time.perf_counter()
    with pytest.raises(ConfigError) as raised:
        recipes.read(path)
    assert time.perf_counter() - begun < 5
    assert message in str(raised.value)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_device_without_end_is_not_read_to_its_end() -> None:
    with pytest.raises(ConfigError, match="at most 1,000,000 bytes"):
        recipes.read(Path("/dev/zero"))


def test_aliases_of_a_usual_size_are_read(tmp_path: Path) -> None:
    path = tmp_path / "aliases.yaml"
    path.write_text(
        "base: &base {lr: 1, when: 2024-01-01}\nother: {<<: *base, lr: 2}\nboth: [*base, *base]\n",
        encoding="utf-8",
    )
    found = recipes.read(path)
    assert found["other"]["lr"] == 2
    assert found["both"] == [found["base"]] * 2


def test_a_long_chain_of_files_is_refused(tmp_path: Path) -> None:
    for i in range(2000):
        (tmp_path / f"{i}.yaml").write_text(f"extends: {i + 1}.yaml\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="at most 20 config files may extend each other"):
        recipes.read(tmp_path / "0.yaml")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            ".".join(["a"] * 3000) + "=1",
            "must name at most 40 keys inside each other, but names 3000",
        ),
        ("a={1: 2}", "keys must be text"),
        ("a=" + "[" * 3000, "nested at most 40 deep"),
        ('a="\\ud800"', "must be text that can be written"),
    ],
)
def test_odd_overrides_are_refused_too(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        recipes.with_overrides({}, [override])


def test_any_key_is_told_from_the_settings() -> None:
    class One(Config):
        value: int = 1

    with pytest.raises(ConfigError, match="One has no key `self`"):
        One(**{"self": 2})
    with pytest.raises(ConfigError, match="but is a list") as raised:
        One(value=["x"] * 10**5)  # type: ignore[arg-type]
    assert len(str(raised.value)) < 200


EMBEDDED = """
data: {source: en, target: de, embedded: {train: {pairs: 20}, valid: {pairs: 2}, test: {pairs: 2}}}
model: {preset: tiny}
training: {updates: 2}
"""


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("model.dim=1000000000", "`dim` of"),
        ("model.dim=65536", "This run would take at least"),
        ("model.layers=1000000000", "`layers` of"),
        ("model.feed_forward=1000000000", "`feed_forward` of"),
        ("training.updates=" + "1" + "0" * 30, "`updates` of"),
        ("training.batch_tokens=1000000000000000000", "`batch_tokens` of"),
        ("training.threads=1000000", "`threads` of"),
        ("training.save_every=" + "1" + "0" * 30, "`save_every` of"),
        ("vocabulary.size=1000000000000", "`size` of"),
        ("decoding.beam=1000000000", "`beam` of"),
        ("data.embedded.train.pairs=1000000000", "This run would take at least"),
        ("data.embedded.train={pairs: 10, longest: 1000000000}", "This run would take at least"),
        (
            "positions.encoder={kind: learned, max_length: 1000000000000}",
            "This run would take at least",
        ),
        ("positions.encoder={kind: [flow]}", "`kind` must be one of"),
        ("positions.encoder.kind={}", "`kind` must be one of"),
        ("task=[1]", "`task` must be one of"),
        ("task={}", "`task` must be one of"),
        ("positions.sites={kind: qkv, self: 1}", "sites"),
        ("positions.sites={kind: [qkv]}", "sites"),
        ("positions.sites={kind: qkv, blocks: 7}", "sites"),
        ("positions.sites={kind: qkv, blocks: [x]}", "sites"),
        ("positions.sites=2024-01-01", "sites"),
        ("data.source=2024-01-01", "`source` of"),
        ("data.embedded.items=[[number]]", "items"),
        ("init_from=2024-01-01", "init_from"),
        ("self=1", "self"),
    ],
)
def test_huge_and_odd_settings_are_one_line_before_memory_is_used(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    override: str,
    named: str,
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(EMBEDDED, encoding="utf-8")
    begun = time.perf_counter()
    line = mistake(monkeypatch, capsys, "train", path, "--out", tmp_path / "out", "--set", override)
    assert named in line
    assert time.perf_counter() - begun < 20
    assert not (tmp_path / "out").exists()


def test_overrides_may_name_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOATER_DATA", "folder")
    changed = recipes.with_overrides({"a": {}}, ['a.b=["${FLOATER_DATA}/1", "${FLOATER_DATA}/2"]'])
    assert changed == {"a": {"b": ["folder/1", "folder/2"]}}
