"""The methods by name: each is a composition of parts, and nothing else. No loops, no ifs.

``METHODS`` lists them in the order of tables. Every function takes the same first arguments, so that methods can be
exchanged: ``density`` (the share of weights that exist), ``every`` (optimizer steps between rewirings), ``until`` (the
step of the last one), ``fraction`` (the share of the active weights that moves, at first), ``start``; and
``constraint``, a structure that the weights have. Method cards with the details: ``docs/methods/``.
"""

from rewire.methods.baselines import acdc as acdc
from rewire.methods.baselines import deepr as deepr
from rewire.methods.baselines import gmp as gmp
from rewire.methods.baselines import granet as granet
from rewire.methods.baselines import snfs as snfs
from rewire.methods.baselines import static as static
from rewire.methods.registry import GGR_VARIANTS as GGR_VARIANTS
from rewire.methods.registry import METHODS as METHODS
from rewire.methods.rewiring import chts as chts
from rewire.methods.rewiring import dsr as dsr
from rewire.methods.rewiring import ggr as ggr
from rewire.methods.rewiring import gse as gse
from rewire.methods.rewiring import mest as mest
from rewire.methods.rewiring import mest_soft as mest_soft
from rewire.methods.rewiring import rigl as rigl
from rewire.methods.rewiring import set_ as set_
from rewire.methods.rewiring import set_rigl as set_rigl
from rewire.methods.rewiring import srigl as srigl
