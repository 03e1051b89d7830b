"""The figures: each file registers one, a function of the runs of one network on one data set."""

from rewire.lab.report.figures.accuracy import accuracy_over_epochs as accuracy_over_epochs
from rewire.lab.report.figures.density import density_over_time as density_over_time
from rewire.lab.report.figures.layers import layer_density as layer_density
from rewire.lab.report.figures.masks import masks as masks
