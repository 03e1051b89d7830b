"""Small sparse models, packed for inference, and the program that one of them uses for a sample."""

import threading

import torch
from torch import nn


def scattered(model, density=0.2, seed=0):
    """With most weights zero."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)) or type(module).__name__ == "Conv1D":
            module.weight.data.mul_(torch.rand(module.weight.shape, generator=generator) < density)
        elif isinstance(module, nn.MultiheadAttention) and module.in_proj_weight is not None:
            module.in_proj_weight.data.mul_(torch.rand(module.in_proj_weight.shape, generator=generator) < density)
        elif isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(generator=generator)
            module.running_var.uniform_(0.5, 2.0, generator=generator)
    return model.eval()


def program(model, x):
    """The program that a model uses for samples of a shape, if it uses any."""
    return None if model.programs is None else model.programs.by_shape.get(x.shape[1:])


def small():
    torch.manual_seed(0)
    convolution = nn.Conv2d(3, 8, 3, padding=1)
    return scattered(nn.Sequential(convolution, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 5)))


def sample(*shape, seed=0):
    return torch.randn(1, *shape, generator=torch.Generator().manual_seed(seed))


def agrees(fast, model, x):
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)


def in_threads(work):
    """Run ``work(seed)`` in four threads at once."""
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Net(nn.Module):
    """Whatever can be written down with two convolutions."""

    def __init__(self, forward):
        super().__init__()
        torch.manual_seed(1)
        self.one, self.two = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))
        self.linear, self.relu, self.drop = nn.Linear(4, 3), nn.ReLU(inplace=True), nn.Dropout(0.5)
        self.how = forward

    def forward(self, x):
        return self.how(self, x)
