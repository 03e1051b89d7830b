"""Films: every rewiring as its edits, which ``rewire watch`` shows while a training runs or afterwards."""

from rewire.film.recorder import Recorder as Recorder
from rewire.film.recorder import record as record
from rewire.film.server import save as save
