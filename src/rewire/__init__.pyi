"""The names at the top of the package. ``__init__.py`` reads this file: a name is added here and nowhere else."""

from rewire import analysis as analysis
from rewire import core as core
from rewire import distributed as distributed
from rewire import film as film
from rewire import inference as inference
from rewire import integrations as integrations
from rewire import io as io
from rewire import kernels as kernels
from rewire import lab as lab
from rewire import methods as methods
from rewire import model as model
from rewire import nn as nn
from rewire import parts as parts
from rewire import shrinking as shrinking
from rewire import stores as stores
from rewire.attach import sparsify as sparsify
from rewire.core.method import Method as Method
from rewire.core.method import Rewiring as Rewiring
from rewire.film.recorder import record as record
from rewire.inference.pack import pack as pack
from rewire.io.sparse_file import load_sparse as load_sparse
from rewire.io.sparse_file import save_sparse as save_sparse
from rewire.methods import METHODS as METHODS
from rewire.methods import acdc as acdc
from rewire.methods import chts as chts
from rewire.methods import deepr as deepr
from rewire.methods import dsr as dsr
from rewire.methods import ggr as ggr
from rewire.methods import gmp as gmp
from rewire.methods import granet as granet
from rewire.methods import gse as gse
from rewire.methods import mest as mest
from rewire.methods import mest_soft as mest_soft
from rewire.methods import rigl as rigl
from rewire.methods import set_ as set_
from rewire.methods import set_rigl as set_rigl
from rewire.methods import snfs as snfs
from rewire.methods import srigl as srigl
from rewire.methods import static as static
from rewire.model.kinds import register as register
from rewire.rewirer.rewirer import Rewirer as Rewirer
from rewire.shrinking.shrink import shrink as shrink
from rewire.stores.convert import to_dense as to_dense

__version__: str
__all__: list[str]
