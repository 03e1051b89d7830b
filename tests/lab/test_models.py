from pathlib import Path

import pytest
import torch
from torch import nn

from rewire.lab.data.datasets import DATASETS
from rewire.lab.models import MODELS, build, weights
from rewire.lab.models.networks.mobilenet_v2 import InvertedResidual
from rewire.lab.models.networks.resnet18 import BasicBlock

CIFAR = (3, 32, 32)
TINY = (3, 64, 64)
DIGITS = (1, 8, 8)


def on_paper(name: str, classes: int, image: tuple[int, int, int], width: float = 1.0) -> nn.Module:
    """Build without memory for the weights: enough for counting and for shapes."""
    with torch.device("meta"):
        return build(name, classes=classes, image=image, width=width)


def layers(model: nn.Module, kind: type[nn.Module]) -> list[nn.Module]:
    return [m for m in model.modules() if isinstance(m, kind)]


def sizes(name: str) -> list[tuple[int, int, int]]:
    return [CIFAR, TINY, (1, 32, 40)] if name == "vgg16" else [CIFAR, TINY, (1, 32, 40), (1, 28, 28), DIGITS]


CLASSIFIERS = [name for name in MODELS if name != "gpt"]  # which predicts a character at every position


@pytest.mark.parametrize(("name", "image"), [(name, image) for name in CLASSIFIERS for image in sizes(name)])
@pytest.mark.parametrize("width", [0.25, 1.0, 1.3])
def test_output_has_one_row_per_image_and_one_column_per_class(
    name: str, image: tuple[int, int, int], width: float
) -> None:
    model = on_paper(name, 7, image, width)
    assert model(torch.empty(2, *image, device="meta")).shape == (2, 7)


@pytest.mark.parametrize("name", MODELS)
def test_every_network_can_be_traced_and_every_parameter_gets_a_gradient(name: str) -> None:
    model = build(name, classes=10, image=CIFAR, width=0.25, seed=0)
    x = torch.randn(4, *CIFAR, generator=torch.Generator().manual_seed(0))
    out = model(x)
    torch.testing.assert_close(torch.fx.symbolic_trace(model)(x), out)
    out.square().sum().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert torch.isfinite(parameter.grad).all(), key


def test_vgg16_for_64x64_has_the_papers_58_8_million_weights() -> None:
    model = on_paper("vgg16", 200, TINY)
    assert weights(model) == 58_783_424
    assert len(layers(model, nn.Conv2d)) == len(layers(model, nn.BatchNorm2d)) == 10
    assert len(layers(model, nn.MaxPool2d)) == 4
    shapes = [tuple(m.weight.shape) for m in model.modules() if isinstance(m, nn.Linear)]
    assert shapes == [(4096, 8192), (4096, 4096), (200, 4096)]


def test_vgg16_for_32x32_has_all_thirteen_convolutions() -> None:
    model = on_paper("vgg16", 100, CIFAR)
    assert len(layers(model, nn.Conv2d)) == len(layers(model, nn.BatchNorm2d)) == 13
    shapes = [tuple(m.weight.shape) for m in model.modules() if isinstance(m, nn.Linear)]
    assert shapes == [(4096, 512), (4096, 4096), (100, 4096)]


def test_large_images_change_only_the_stride_of_the_stem() -> None:
    for name in ("resnet-18", "mobilenet-v2"):
        small, large = on_paper(name, 100, CIFAR), on_paper(name, 100, TINY)
        strides = [[m.stride for m in n.modules() if isinstance(m, nn.Conv2d)] for n in (small, large)]
        assert strides[0][0] == (1, 1)
        assert strides[1][0] == (2, 2)
        assert strides[0][1:] == strides[1][1:]
        assert weights(small) == weights(large)


@pytest.mark.parametrize("name", ["resnet-18", "mobilenet-v2"])
def test_networks_with_stride_2_are_the_large_image_form_at_any_size(name: str) -> None:
    strided, large = on_paper(f"{name}-stride2", 100, CIFAR), on_paper(name, 100, TINY)
    strides = [[m.stride for m in n.modules() if isinstance(m, nn.Conv2d)] for n in (strided, large)]
    assert strides[0] == strides[1]
    assert [p.shape for p in strided.parameters()] == [p.shape for p in large.parameters()]


def test_mobilenet_adds_its_input_only_where_shapes_agree() -> None:
    blocks = [m for m in on_paper("mobilenet-v2", 100, CIFAR).modules() if isinstance(m, InvertedResidual)]
    # 1, 2, 3, 4, 3, 3 and 1 blocks in the stages: all but the first of each stage.
    expected = [0, 0, 1, 0, 1, 1, 0, 1, 1, 1, 0, 1, 1, 0, 1, 1, 0]
    assert [int(block.residual) for block in blocks] == expected


def test_resnet_projects_its_shortcut_only_where_shapes_differ() -> None:
    blocks = [m for m in on_paper("resnet-18", 100, CIFAR).modules() if isinstance(m, BasicBlock)]
    assert [isinstance(block.shortcut, nn.Identity) for block in blocks] == [True, True] + [False, True] * 3


def test_width_scales_channels() -> None:
    first = next(m for m in on_paper("resnet-18", 10, CIFAR, width=0.25).modules() if isinstance(m, nn.Conv2d))
    assert first.out_channels == 16
    tiny = [m for m in on_paper("vgg-small", 10, CIFAR, width=0.001).modules() if isinstance(m, nn.Conv2d)]
    assert {m.out_channels for m in tiny} == {1}
    mobile = [m for m in on_paper("mobilenet-v2", 10, CIFAR, width=0.35).modules() if isinstance(m, nn.Conv2d)]
    assert all(m.out_channels % 8 == 0 for m in mobile)
    assert mobile[-1].out_channels == 1280


def test_weights_are_kaiming_uniform_and_biases_zero() -> None:
    model = build("vgg-small", classes=10, image=CIFAR, seed=0)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            bound = (6 / module.weight[0].numel()) ** 0.5
            assert module.weight.abs().max() <= bound
            assert module.weight.abs().mean().item() == pytest.approx(bound / 2, rel=0.1)
            assert module.bias is None or not module.bias.any()


def test_a_seed_names_the_weights_and_leaves_the_global_generator_alone() -> None:
    before = torch.random.get_rng_state()
    a, b, c = (build("mlp", classes=10, image=DIGITS, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    same = [torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True)]
    assert all(same)
    assert not torch.equal(next(a.parameters()), next(c.parameters()))


def test_an_unknown_name_is_answered_with_the_nearest_and_all_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown network 'resnet18'. Did you mean 'resnet-18'\?") as caught:
        build("resnet18", classes=10, image=CIFAR)
    assert all(name in str(caught.value) for name in MODELS)
    with pytest.raises(ValueError, match="unknown network ''. Known: gpt, mlp, "):
        build("", classes=10, image=CIFAR)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("width", [0.0, -1.0, float("nan"), float("inf")])
def test_widths_that_make_no_network_are_refused(name: str, width: float) -> None:
    with pytest.raises(ValueError, match=rf"{name} was asked for width {width}: give a positive number"):
        build(name, classes=10, image=CIFAR, width=width)


@pytest.mark.parametrize(
    ("name", "image"),
    [("vgg16", (1, 28, 28)), ("vgg-small", (1, 8, 7)), ("resnet-18", (3, 4, 4)), ("mobilenet-v2", (3, 7, 32))],
)
def test_images_too_small_for_the_network_are_refused(name: str, image: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=rf"{name} needs images of at least .* given {image[1]}x{image[2]}"):
        build(name, classes=10, image=image)


def test_other_impossible_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="0 classes"):
        build("mlp", classes=0, image=CIFAR)
    with pytest.raises(ValueError, match="three positive numbers"):
        build("mlp", classes=10, image=(0, 8, 8))


def test_the_table_in_the_documentation_is_what_the_code_builds() -> None:
    text = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    rows = [row for row in rows if row[0] in DATASETS and row[1] in MODELS]
    images, texts = len(DATASETS) - 1, 1  # the GPT is for the text, and the other networks for images
    assert len(rows) == images * len(CLASSIFIERS) + texts - 2  # VGG16 takes neither digits nor Fashion-MNIST
    for data, name, sparse, everything, _ in rows:
        model = on_paper(name, DATASETS[data].classes, DATASETS[data].shape)
        assert f"{weights(model):,}" == sparse, (data, name)
        assert f"{sum(p.numel() for p in model.parameters()):,}" == everything, (data, name)


def test_a_gpt_predicts_every_position_from_those_before_it() -> None:
    model = build("gpt", classes=97, image=(1, 1, 16), width=0.25, seed=0)
    text = torch.randint(97, (2, 1, 1, 16), generator=torch.Generator().manual_seed(0)).float()
    changed = text.clone()
    changed[..., 10] = (changed[..., 10] + 1) % 97
    before, after = model(text), model(changed)
    assert before.shape == (2, 97, 16)
    assert torch.equal(before[..., :10], after[..., :10])
    assert not torch.equal(before[..., 10:], after[..., 10:])
