"""``rewire repeat``: a finished run again, to check that its numbers are the same."""

import torch

from rewire.lab.cli import arguments as cli
from rewire.lab.cli.display import Display
from rewire.lab.cli.terminal import console
from rewire.lab.compact import read_runs
from rewire.lab.repeat import changed_surroundings, pick
from rewire.lab.repeat import repeat as train_again
from rewire.lab.training.trainer import Place


def repeat(command: "cli.Repeat", words: str) -> None:
    """Train the run again; an error lists what differs."""
    record = pick(read_runs(command.runs), command.id)
    run = record.run
    torch.set_num_threads(command.threads)
    console.print(f"{run.label}, id {run.id}", highlight=False)
    with Display([run], 1, {run.id: 0}, console) as display:
        display.listen(run, {"kind": "begin"})
        differences = train_again(record, Place(data_dir=command.data_dir), lambda event: display.listen(run, event))
    if differences:
        reasons = changed_surroundings(record)
        about = f". Another machine may round differently: {'; '.join(reasons)}" if reasons else ""
        raise ValueError("the repeated run differs: " + "; ".join(differences[:5]) + about)
    assert record.result is not None
    accuracy = record.result["accuracy"]
    console.print(f"the same numbers in all {run.epochs} epochs, accuracy {accuracy:.2%}", highlight=False)
