"""The parts that a method is composed of; each file answers one question. To write a part of your own, start here.

``start``: where are the first weights? ``density``: how many weights are there? ``schedule``: when is the network
rewired, and how much of it? ``drop``: which weights are removed? ``allocate``: how many does each layer get back?
``grow``: which positions become active? ``birth``: with what values? ``constraint``: which structure do they have?

The interfaces are in ``rewire.core.protocols``. ``apportion`` divides a budget exactly; ``Gather`` and ``Select``
declare what a part sends to other ranks.
"""

from rewire.parts.allocate import GlobalTop as GlobalTop
from rewire.parts.allocate import InPlace as InPlace
from rewire.parts.allocate import Proportional as Proportional
from rewire.parts.apportion import apportion as apportion
from rewire.parts.birth import RandomSign as RandomSign
from rewire.parts.birth import Tiny as Tiny
from rewire.parts.collectives import Gather as Gather
from rewire.parts.collectives import Select as Select
from rewire.parts.constraint import NM as NM
from rewire.parts.constraint import Blocks as Blocks
from rewire.parts.constraint import Channels as Channels
from rewire.parts.constraint import FanIn as FanIn
from rewire.parts.density import Alternating as Alternating
from rewire.parts.density import Constant as Constant
from rewire.parts.density import Cosine as Cosine
from rewire.parts.density import Cubic as Cubic
from rewire.parts.density import Linear as Linear
from rewire.parts.density import Sigmoid as Sigmoid
from rewire.parts.density import Stepwise as Stepwise
from rewire.parts.drop import BelowThreshold as BelowThreshold
from rewire.parts.drop import Lowest as Lowest
from rewire.parts.drop import SignFlipped as SignFlipped
from rewire.parts.grow import AtRandom as AtRandom
from rewire.parts.grow import Mix as Mix
from rewire.parts.grow import Strongest as Strongest
from rewire.parts.grow import StrongestOfSample as StrongestOfSample
from rewire.parts.path_growth import ShortPaths as ShortPaths
from rewire.parts.schedule import Never as Never
from rewire.parts.schedule import Periodic as Periodic
from rewire.parts.scores import GradientAverage as GradientAverage
from rewire.parts.scores import Saliency as Saliency
from rewire.parts.scores import Score as Score
from rewire.parts.scores import WeightPlusGradient as WeightPlusGradient
from rewire.parts.soft_drop import Percolated as Percolated
from rewire.parts.soft_drop import SoftLowest as SoftLowest
from rewire.parts.start import STARTS as STARTS
from rewire.parts.start import Connected as Connected
from rewire.parts.start import Dense as Dense
from rewire.parts.start import ErdosRenyi as ErdosRenyi
from rewire.parts.start import ErdosRenyiKernel as ErdosRenyiKernel
from rewire.parts.start import Explicit as Explicit
from rewire.parts.start import Scattered as Scattered
from rewire.parts.start import Uniform as Uniform
from rewire.parts.start import dense as dense
from rewire.parts.start import erdos_renyi as erdos_renyi
from rewire.parts.start import erdos_renyi_kernel as erdos_renyi_kernel
from rewire.parts.start import explicit as explicit
from rewire.parts.start import uniform as uniform
from rewire.parts.start_from_data import Grasp as Grasp
from rewire.parts.start_from_data import Shuffled as Shuffled
from rewire.parts.start_from_data import Snip as Snip
from rewire.parts.start_from_data import SynFlow as SynFlow
from rewire.parts.start_from_weights import Given as Given
from rewire.parts.start_from_weights import Magnitude as Magnitude
from rewire.parts.start_from_weights import Nonzero as Nonzero
