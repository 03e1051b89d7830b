import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.film.films import recorded, sparse, train

import rewire
from rewire.film.format import decode, encode, read


@given(st.sets(st.integers(0, 2**40)))
def test_positions_survive_their_encoding(positions):
    ordered = sorted(positions)
    assert decode(encode(ordered)).tolist() == ordered


def test_an_encoding_by_hand():
    # 3, then 1 more, then 396 = 3 * 128 + 12 more: octets 3, 1, 140, 3
    assert encode([3, 4, 400]) == encode(np.array([3, 4, 400]))
    assert decode("eJxjZuxhBgABLgCU").tolist() == [3, 4, 400]


def replayed(lines):
    """The active positions of each layer after every line of a film, by plain sets."""
    active = [set(decode(layer["active"]).tolist()) for layer in lines[0]["layers"]]
    for line in lines[1:]:
        if line["kind"] == "rewiring":
            for positions, edit in zip(active, line["layers"], strict=True):
                if edit:
                    positions -= set(decode(edit["drop"]).tolist())
                    positions |= set(decode(edit["grow"]).tolist())
    return active


@pytest.mark.parametrize("store", ["masked", "packed"])
def test_a_film_replays_to_the_topology_of_the_model(tmp_path, store):
    rewirer, path = recorded(tmp_path, store=store)
    lines = read(path)
    assert [line["step"] for line in lines if line["kind"] == "rewiring"] == [one.step for one in rewirer.history]
    assert replayed(lines) == [set(layer.active().tolist()) for layer in rewirer.layers]
    assert [line["loss"] for line in lines if line["kind"] == "metrics"] == [1.5, 0.5]


def test_recording_changes_nothing(tmp_path):
    models = []
    for film in (False, True):
        model, optimizer, rewirer = sparse()
        if film:
            rewire.record(rewirer, tmp_path)
        train(model, optimizer, 30)
        models.append(model.state_dict())
    for name, tensor in models[0].items():
        assert torch.equal(tensor, models[1][name])


def test_a_closed_recorder_records_no_more(tmp_path):
    model, optimizer, rewirer = sparse()
    film = rewire.record(rewirer, tmp_path)
    train(model, optimizer, 8)
    film.close()
    before = film.path.read_bytes()
    train(model, optimizer, 8, first=8)
    assert film.path.read_bytes() == before


def test_a_training_that_was_killed_and_resumed_has_one_film(tmp_path):
    recorded(tmp_path / "straight")
    model, optimizer, rewirer = sparse()
    rewire.record(rewirer, tmp_path / "killed", title="small")
    train(model, optimizer, 12)
    saved = [part.state_dict() for part in (model, optimizer, rewirer)]
    saved = torch.load(_file(tmp_path, saved), weights_only=True)
    train(model, optimizer, 6, first=12)  # these rewirings are lost with the process, and half a line was being written
    with (tmp_path / "killed" / "film.jsonl").open("a") as file:
        file.write('{"kind": "rewiring", "st')
    model, optimizer, rewirer = sparse()
    for part, state in zip((model, optimizer, rewirer), saved, strict=True):
        part.load_state_dict(state)
    with rewire.record(rewirer, tmp_path / "killed"):
        train(model, optimizer, 28, first=12)
    films = [read(tmp_path / name / "film.jsonl") for name in ("straight", "killed")]
    straight, killed = ([line for line in film if line["kind"] != "metrics"] for film in films)
    assert straight == killed


def _file(folder, saved):
    path = folder / "checkpoint.pt"
    torch.save(saved, path)
    return path


def test_what_is_no_film_is_refused(tmp_path):
    path = tmp_path / "film.jsonl"
    path.write_text(json.dumps({"kind": "start"}) + "\n")
    with pytest.raises(ValueError, match="is not a film: its first line should say 'rewire-film-1'"):
        read(path)


def test_a_film_takes_about_a_byte_and_a_half_per_moved_weight(tmp_path):
    generator = np.random.default_rng(0)
    moved = np.sort(generator.choice(11_000_000, 33_000, replace=False))  # a tenth of ResNet-18 at 97 %
    assert len(encode(moved)) < 2 * len(moved)


def test_a_film_that_does_not_lead_here_begins_again(tmp_path):
    recorded(tmp_path / "other", fraction=0.1)
    model, optimizer, rewirer = sparse()
    train(model, optimizer, 10)
    with pytest.warns(UserWarning, match="does not lead to the topology at step 10"):
        film = rewire.record(rewirer, tmp_path / "other")
    with film:
        train(model, optimizer, 10, first=10)
    lines = read(film.path)
    assert lines[0]["step"] == 10
    assert replayed(lines) == [set(layer.active().tolist()) for layer in rewirer.layers]


def test_metrics_that_are_not_finite_are_left_out(tmp_path):
    _, _, rewirer = sparse()
    with rewire.record(rewirer, tmp_path) as film:
        film.log(loss=float("nan"), accuracy=0.5)
        film.log(loss=float("inf"))
    assert read(film.path)[1:] == [{"kind": "metrics", "step": 0, "accuracy": 0.5}]


def test_ordinary_steps_do_not_touch_the_recorder(tmp_path, monkeypatch):
    model, optimizer, rewirer = sparse(every=4)
    hooks = [dict(optimizer._optimizer_step_pre_hooks), dict(optimizer._optimizer_step_post_hooks)]
    film = rewire.record(rewirer, tmp_path)
    assert [dict(optimizer._optimizer_step_pre_hooks), dict(optimizer._optimizer_step_post_hooks)] == hooks
    before = film.path.read_bytes()
    monkeypatch.setattr(film, "_whole_layers", None)  # called at a rewiring, it would raise
    train(model, optimizer, 3)
    assert film.path.read_bytes() == before
    with pytest.raises(TypeError):
        train(model, optimizer, 1, first=3)
