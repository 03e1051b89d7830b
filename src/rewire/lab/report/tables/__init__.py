"""The tables: each file registers one, a function from records to tables."""

from rewire.lab.report.tables.costs import table_costs as table_costs
from rewire.lab.report.tables.drop import table_drop as table_drop
from rewire.lab.report.tables.table1 import table1 as table1
from rewire.lab.report.tables.table2 import table2 as table2
from rewire.lab.report.tables.table3 import table3 as table3
from rewire.lab.report.tables.table4 import table4 as table4
