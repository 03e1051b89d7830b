"""What a rewiring is: positions and counts, layers as algorithms see them, and the one algorithm."""

from rewire.core.layer import Context as Context
from rewire.core.layer import Layer as Layer
from rewire.core.layer import LayerSpec as LayerSpec
from rewire.core.layer import Signal as Signal
from rewire.core.method import Method as Method
from rewire.core.method import Rewiring as Rewiring
from rewire.core.method import plan_rewiring as plan_rewiring
from rewire.core.score import Score as Score
from rewire.core.topology import Edit as Edit
from rewire.core.topology import ScoredPositions as ScoredPositions
from rewire.core.views import Captured as Captured
from rewire.core.views import Edited as Edited
