import gc
import json
import shutil
from math import comb, log2
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.film.films import plain, recorded, sparse, train

import rewire
from rewire.film.format import Encoder, film_in, read, topology_after
from rewire.film.old_format import decode
from rewire.film.subsets import BitReader, BitWriter

OLD = Path(__file__).parent / "first_format.jsonl"  # written before the format changed: sparse(), 40 steps, two logs


@given(st.lists(st.tuples(st.integers(0, 300), st.data()), max_size=4))
def test_subsets_survive_their_encoding(drawn):
    cases = [(n, sorted(data.draw(st.sets(st.integers(0, n - 1)) if n else st.just(set())))) for n, data in drawn]
    writer = BitWriter()
    for n, members in cases:
        writer.subset(np.array(members, np.int64), n)
    reader = BitReader(writer.to_bytes())
    assert [reader.subset(n).tolist() for n, _ in cases] == [members for _, members in cases]


def test_a_subset_by_hand():
    # 3 and 4 of 0 to 399: count 2 as 011; gaps 3 and 0, not divided (a shift of 0 as 1), in unary 0001 and 1
    writer = BitWriter()
    writer.subset(np.array([3, 4]), 400)
    assert "".join(f"{octet:08b}" for octet in writer.to_bytes()).rstrip("0") == "011" + "1" + "0001" + "1"


def test_large_positions_survive_too():
    members = np.array([0, 2**40, 2**40 + 1])
    writer = BitWriter()
    writer.subset(members, 2**41)
    assert BitReader(writer.to_bytes()).subset(2**41).tolist() == members.tolist()


@pytest.mark.parametrize(("n", "k"), [(1_000_000, 3000), (30_000, 3000), (3000, 2700)])
def test_subsets_take_little_more_than_the_least_that_is_possible(n, k):
    members = np.sort(np.random.default_rng(0).choice(n, k, replace=False))
    writer = BitWriter()
    writer.subset(members, n)
    assert 8 * len(writer.to_bytes()) < 1.05 * log2(comb(n, k)) + 64


def test_damaged_bits_are_refused():
    writer = BitWriter()
    writer.subset(np.arange(0, 1000, 7), 1000)
    with pytest.raises(ValueError, match="damaged"):
        BitReader(writer.to_bytes()[:-20]).subset(1000)
    with pytest.raises(ValueError, match="a subset of 5 numbers cannot have 143: the film is damaged"):
        BitReader(writer.to_bytes()).subset(5)


def replayed(lines):
    """The active positions of each layer after every line of a film, by plain sets."""
    active = [set(layer["active"].tolist()) for layer in lines[0]["layers"]]
    for line in lines[1:]:
        if line["kind"] == "rewiring":
            for positions, edit in zip(active, line["layers"], strict=True):
                assert positions >= set(edit["drop"].tolist())
                positions -= set(edit["drop"].tolist())
                assert not positions & set(edit["grow"].tolist())
                positions |= set(edit["grow"].tolist())
    return active


def test_a_film_of_the_first_format_is_read_and_continued(tmp_path):
    shutil.copy(OLD, tmp_path / "film.jsonl")
    recorded(tmp_path / "new")
    old, new = read(tmp_path / "film.jsonl"), read(tmp_path / "new" / "film.rewire")
    assert old[0]["format"] == "rewire-film-1"
    assert plain(old)[1] == plain(new)[1]
    assert len(OLD.read_bytes()) > 1.5 * (tmp_path / "new" / "film.rewire").stat().st_size
    assert film_in(tmp_path) == tmp_path / "film.jsonl"
    encoder = Encoder()
    (tmp_path / "film.rewire").write_bytes(b"".join(map(encoder.encode, old)))
    assert plain(read(tmp_path / "film.rewire")) == plain(old)
    assert topology_after(read(film_in(tmp_path))) == topology_after(old)
    assert decode("eJxjZuxhBgABLgCU").tolist() == [3, 4, 400]


def test_a_film_that_was_cut_off_anywhere_is_whole_up_to_there(tmp_path):
    _, path = recorded(tmp_path)
    data, whole = path.read_bytes(), len(read(path))
    counts = []
    for end in range(len(data) - 1, len(data) // 2, -7):
        path.write_bytes(data[:end])
        counts.append(len(read(path)))
    assert max(counts) < whole
    assert counts == sorted(counts, reverse=True)


def test_the_file_of_a_training_that_nobody_closed_is_closed_with_it(tmp_path, recwarn):
    model, optimizer, rewirer = sparse()
    film = rewire.record(rewirer, tmp_path)
    train(model, optimizer, 12)
    file, path = film._file, film.path
    del model, optimizer, rewirer, film
    gc.collect()
    assert file.closed
    assert read(path)[-1]["step"] == 12
    assert not [warning for warning in recwarn if warning.category is ResourceWarning]


def test_a_damaged_film_is_refused_by_name_and_begun_again_by_a_training(tmp_path):
    model, optimizer, rewirer = sparse()
    film = rewire.record(rewirer, tmp_path)
    train(model, optimizer, 12)
    film.close()
    film.path.write_bytes(film.path.read_bytes().replace(b'"kind": "rewiring"', b'"kind": rewiring', 1))
    with pytest.raises(ValueError, match=r"film\.rewire is damaged"):
        read(film.path)
    with pytest.warns(UserWarning, match="cannot be continued"):
        film = rewire.record(rewirer, tmp_path)
    assert [line["step"] for line in read(film.path)] == [12]


def test_a_checkpoint_that_is_loaded_under_the_recorder_begins_the_film_again(tmp_path):
    model, optimizer, rewirer = sparse()
    train(model, optimizer, 12)
    saved = torch.load(_file(tmp_path, [part.state_dict() for part in (model, optimizer, rewirer)]), weights_only=True)
    model, optimizer, rewirer = sparse()
    film = rewire.record(rewirer, tmp_path)
    for part, state in zip((model, optimizer, rewirer), saved, strict=True):
        part.load_state_dict(state)
    with pytest.warns(UserWarning, match="load it before rewire.record is called"):
        train(model, optimizer, 12, first=12)
    film.close()
    assert replayed(read(film.path)) == [set(layer.active().tolist()) for layer in rewirer.layers]


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
    with (tmp_path / "killed" / "film.rewire").open("a") as file:
        file.write('{"kind": "rewiring", "st')
    model, optimizer, rewirer = sparse()
    for part, state in zip((model, optimizer, rewirer), saved, strict=True):
        part.load_state_dict(state)
    with rewire.record(rewirer, tmp_path / "killed"):
        train(model, optimizer, 28, first=12)
    films = [read(tmp_path / name / "film.rewire") for name in ("straight", "killed")]
    assert plain(films[0]) == plain(films[1])


def _file(folder, saved):
    path = folder / "checkpoint.pt"
    torch.save(saved, path)
    return path


def test_what_is_no_film_is_refused(tmp_path):
    path = tmp_path / "film.jsonl"
    path.write_text(json.dumps({"kind": "start"}) + "\n")
    with pytest.raises(ValueError, match="is not a film: its first line should say 'rewire-film-2'"):
        read(path)


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
