"""The dashboards: service, speculation, capacity, faults.

What deploy/prometheus/rules.yaml records is shown as recorded, for all processes; everything else
is of the chosen ones.
"""

from grafana.capacity import CAPACITY
from grafana.faults import FAULTS
from grafana.service import SERVICE
from grafana.speculation import SPECULATION

DASHBOARDS = (SERVICE, SPECULATION, CAPACITY, FAULTS)
