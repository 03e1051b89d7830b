"""Data sets: official archives, file formats, augmentation, and functions of one's own."""

from rewire.lab.data.datasets import fetch as fetch
from rewire.lab.data.datasets import load as load
from rewire.lab.data.source import DATASETS as DATASETS
from rewire.lab.data.source import Dataset as Dataset
from rewire.lab.data.source import Source as Source
from rewire.lab.data.source import register as register
from rewire.lab.data.source import register_function as register_function
