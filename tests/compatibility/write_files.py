"""Write the files that ``test_written_before.py`` reads: ``python -m tests.compatibility.write_files FOLDER``."""

# The folder ``files`` was written before the source moved into its present folders, and is not to be written anew: a
# later version must read what an earlier one wrote. A new format gets a folder of its own.

import contextlib
import copy
import hashlib
import json
import os
import runpy
import sys
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn

import rewire
import rewire.distributed

# All trainings are in float64, so that no processor's rounding decides what is rewired.
IMAGE, CLASSES = (2, 6, 6), 4
STOP, END = 7, 16  # rewirings at 5, 10 and 15: one before the state is saved, two after
TRAININGS = {  # method, store, optimizer
    "rigl-masked-sgd": ("rigl", "masked", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=5e-4)),
    "ggr-packed-adamw": ("ggr", "packed", lambda p: torch.optim.AdamW(p, lr=0.02)),
    "snfs-masked-sgd": ("snfs", "masked", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True)),
}
SHARDED = ("dsr", "masked", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))  # dsr: for it has a memory
EXTRA = {"best": 0.1, "names": ["a", "b"]}

SHORT = ["--epochs", "3", "--limit", "900", "--batch-size", "25", "--every", "12", "--until", "1"]
SHORT += ["--precision", "float64", "--start", "connected-erk"]
RUNS = {
    "masked": ["--model", "vgg-small", "--width", "0.05", "--sparsity", "0.75", "--seed", "3", *SHORT],
    "packed": ["--model", "mlp", "--width", "0.06", "--sparsity", "0.85", "--store", "packed", *SHORT],
}
EPOCHS = 1  # after which a run was interrupted


# --- what the files are about, for the tests as well ------------------------------------------------------------------


def build(method, store, optimizer, seed, every=5):
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2, bias=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(54, CLASSES),
    ).double()
    optimizer = optimizer(model.parameters())
    method = rewire.METHODS[method](density=0.3, every=every, until=20, fraction=0.3)
    return model, optimizer, rewire.sparsify(model, optimizer, method, store=store, seed=seed)


def batch(step):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(8, *IMAGE, generator=generator, dtype=torch.float64)
    return x, torch.randint(CLASSES, (8,), generator=generator)


def train(model, optimizer, begin, end):
    losses = []
    for step in range(begin, end):
        x, y = batch(step)
        loss = F.cross_entropy(model.train()(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def outputs(model, x):
    return model.eval()(x)


def flat(state):
    """All values of a state_dict in one tensor: a file spends more on each tensor than on its few values."""
    values = [torch.as_tensor(one, dtype=torch.float64).flatten() for one in state.values()]
    return torch.cat(values) if values else torch.empty(0)


def seen(model, optimizer, rewirer):
    """All that a training consists of. What is ``common`` does not depend on the store."""
    told = rewirer.state_dict()
    store, averages = told.pop("store"), told.pop("averages")
    moments = {f"{i} {key}": one for i, entry in optimizer.state_dict()["state"].items() for key, one in entry.items()}
    common = {
        "weights": flat(rewire.to_dense(model).state_dict()),
        "masks": torch.cat([layer.mask.flatten() for layer in rewirer.layers]),
        "outputs": outputs(model, batch(1000)[0]),
        "rewirer": told,
    }
    return {"common": common, "store": store, "moments": flat(moments), "averages": flat(averages)}


def leaves(tree, path=""):
    """The tensors and plain values of nested dicts and lists, by their paths."""
    if not isinstance(tree, dict | list):
        return {path: tree}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return {at: leaf for key, value in items for at, leaf in leaves(value, f"{path}/{key}").items()}


def digest_of(tree):
    """A few letters that stand for all names, types and bits."""
    made = hashlib.sha256()
    for path, leaf in sorted(leaves(tree).items()):
        tensor = isinstance(leaf, torch.Tensor)
        made.update(f"{path} {leaf.dtype} {tuple(leaf.shape)} ".encode() if tensor else f"{path} {leaf!r} ".encode())
        made.update(leaf.detach().contiguous().numpy().tobytes() if tensor else b"")
    return made.hexdigest()


def lab_network(name):
    """The network of a run, of full size and without training."""
    if name == "packed":
        head = [nn.Linear(64, 18), nn.ReLU(), nn.Linear(18, 6), nn.ReLU(), nn.Linear(6, 10)]
        return nn.Sequential(nn.Flatten(), *head).eval()
    body = []
    for inputs, channels in ((1, 2), (2, 3), (3, 6)):
        for given in (inputs, channels):
            body += [nn.Conv2d(given, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
        body.append(nn.MaxPool2d(2))
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(6, 13), nn.ReLU(), nn.Linear(13, 10)).eval()


def images():
    return torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def processor():
    """What the last bits of a result depend on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().split("\n\n")[0].splitlines() if info.exists() else []
    known = dict(line.replace("\t", "").split(":", 1) for line in lines)
    about = {key: known[key].strip() for key in ("vendor_id", "cpu family", "model", "model name") if key in known}
    return {"torch": torch.__version__, "instructions": torch.backends.cpu.get_cpu_capability(), **about}


# --- writing ----------------------------------------------------------------------------------------------------------


def write_trainings():
    for name, training in TRAININGS.items():
        model, optimizer, rewirer = build(*training, seed=0)
        train(model, optimizer, 0, STOP)
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rewirer": rewirer.state_dict()}
        torch.save({**copy.deepcopy(states), **_rest(model, optimizer, rewirer)}, f"{name}.pt")


def write_sharded():
    model, optimizer, rewirer = build(*SHARDED, seed=0, every=1)
    train(model, optimizer, 0, STOP)
    rewire.distributed.save("sharded", STOP, model=model, optimizer=optimizer, rewirer=rewirer, extra=EXTRA)
    digest = digest_of([one.state_dict() for one in (model, optimizer, rewirer)])
    torch.save({"digest": digest, **_rest(model, optimizer, rewirer)}, "sharded/expected.pt")


def _rest(model, optimizer, rewirer):
    """What the network computes when the training stops, and all that is seen in the end if it goes on."""
    stopped = outputs(model, batch(1000)[0])
    losses = train(model, optimizer, STOP, END)
    return {"outputs": stopped, "losses": losses, "continued": seen(model, optimizer, rewirer)}


def write_runs():
    for name, words in RUNS.items():
        command("train", *words, "--out", f"runs/finished/{name}")
        command("train", *words, "--out", f"runs/interrupted/{name}", stop=EPOCHS)
        with open(f"runs/inspect-{name}.json", "w") as file, contextlib.redirect_stdout(file):
            command("inspect", f"runs/finished/{name}", "--json")


def write_networks():
    command("export", "runs/finished/masked", "--to", "safetensors", "-o", "networks/sparse.safetensors")
    command("export", "runs/finished/masked", "--to", "dense", "-o", "networks/dense.safetensors")
    command("export", "runs/finished/masked", "--to", "csr", "-o", "networks/csr.npz")
    command("shrink", "runs/finished/masked", "-o", "networks/small.safetensors")
    command("shrink", "runs/finished/packed", "-o", "networks/small.pt")
    command("shrink", "runs/finished/packed", "-o", "networks/small-packed.pt", "--packed")
    expected = {}
    for file, name in (("sparse.safetensors", "masked"), ("small.safetensors", "masked"), ("small.pt", "packed")):
        path, model = f"networks/{file}", lab_network(name)
        source = torch.load(path, weights_only=True) if file.endswith(".pt") else path
        state = rewire.load_sparse(source, model)
        expected[file] = {"digest": digest_of(state), "outputs": outputs(model, images())}
    torch.save(expected, "networks/expected.pt")


def command(*words, stop=None):
    """The command ``rewire``; with ``stop``, interrupted as by Ctrl-C when so many epochs are on disk."""
    replace, written = os.replace, 0

    def stopping(source, target):
        nonlocal written
        replace(source, target)
        written += Path(target).name == "metrics.jsonl"
        if written == stop:
            raise KeyboardInterrupt

    ended = contextlib.nullcontext() if stop is None else contextlib.suppress(SystemExit)
    with mock.patch("os.replace", stopping), mock.patch("sys.argv", ["rewire", *words]), ended:
        runpy.run_module("rewire.lab", run_name="__main__")


def write(folder):
    torch.set_num_threads(1)
    folder.mkdir(parents=True)
    with contextlib.chdir(folder):  # a sharded checkpoint remembers the path that it was given
        Path("processor.json").write_text(json.dumps(processor(), indent=1) + "\n")
        write_trainings()
        write_sharded()
        write_runs()
        write_networks()


if __name__ == "__main__":
    write(Path(sys.argv[1]))
