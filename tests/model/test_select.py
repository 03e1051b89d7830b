import pytest
import torch
from torch import nn

from rewire.model.select import endpoints, find_layers, units, unwrap


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.conv = nn.Conv1d(4, 4, 3)
        self.up = nn.ConvTranspose3d(4, 6, 2, groups=2)
        self.norm = nn.BatchNorm1d(4)
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
        self.tied = nn.Linear(8, 4)
        self.tied.weight = self.body[1].weight
        self.head = nn.Linear(4, 5)
        self.head.weight = self.embed.weight


def names(found):
    return [one.spec.name for one in found]


def test_every_conv_and_linear_once_and_never_embeddings_or_norms():
    found, left_out = find_layers(Mixed())
    assert names(found) == ["conv", "up", "body.0", "body.1"]
    assert left_out == {"head": "shared with the embedding embed"}
    assert found[1].spec.groups == 2
    assert found[1].spec.transposed


def test_include_and_exclude_take_globs_and_types():
    assert names(find_layers(Mixed(), include="body.*")[0]) == ["body.0", "body.1"]
    assert names(find_layers(Mixed(), include=[nn.Conv1d, "body.1.weight"])[0]) == ["conv", "body.1"]
    found, left_out = find_layers(Mixed(), exclude=[nn.Linear])
    assert names(found) == ["conv", "up"]
    assert left_out["body.0"] == "excluded"


def test_what_matches_nothing_is_an_error():
    with pytest.raises(ValueError, match=r"include='bdy.\*' matches no layer; the layers are conv, up"):
        find_layers(Mixed(), include="bdy.*")
    with pytest.raises(ValueError, match="exclude='Conv2d' matches no layer"):
        find_layers(Mixed(), exclude=nn.Conv2d)
    with pytest.raises(TypeError, match="include takes name globs and module types, not 3"):
        find_layers(Mixed(), include=[3])


@pytest.mark.parametrize("model", [nn.Sequential(), nn.Sequential(nn.ReLU(), nn.BatchNorm1d(3))])
def test_a_model_without_conv_or_linear(model):
    with pytest.raises(ValueError, match="Sequential has no Conv or Linear layer"):
        find_layers(model)


def test_frozen_weights_stay_dense_and_are_listed():
    model = Mixed()
    model.conv.weight.requires_grad_(False)
    found, left_out = find_layers(model)
    assert "conv" not in names(found)
    assert left_out["conv"] == "frozen"
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(ValueError, match="no weight is left to make sparse: conv: frozen"):
        find_layers(model)


def test_parametrized_and_lazy_weights():
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), nn.Linear(3, 3))
    assert find_layers(model)[1] == {"0": "its weight is computed from others (a parametrization)"}
    with pytest.raises(ValueError, match="0 is lazy and has no shape yet"):
        find_layers(nn.Sequential(nn.LazyLinear(3)))


def test_wrappers_do_not_change_names():
    model = Mixed()
    assert unwrap(torch.compile(nn.DataParallel(model))) is model
    holder = nn.Module()
    holder.module = model  # the user's own attribute of that name is not a wrapper
    assert unwrap(holder) is holder


def test_endpoints_by_hand():
    conv = find_layers(nn.Conv2d(4, 6, 2, groups=2))[0][0].spec  # weight [6, 2, 2, 2]: outputs 0-2 see inputs 0-1
    assert conv.name == "weight"
    assert units(conv) == (4, 6)
    inputs, outputs = endpoints(conv, torch.tensor([0, 7, 8, 24, 47]))
    assert outputs.tolist() == [0, 0, 1, 3, 5]
    assert inputs.tolist() == [0, 1, 0, 2, 3]
    up = find_layers(nn.ConvTranspose2d(4, 6, 1, groups=2))[0][0].spec  # weight [4, 3, 1, 1]: inputs first
    assert units(up) == (4, 6)
    inputs, outputs = endpoints(up, torch.tensor([0, 2, 6, 11]))
    assert inputs.tolist() == [0, 0, 2, 3]
    assert outputs.tolist() == [0, 2, 3, 5]
