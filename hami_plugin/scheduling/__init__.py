"""Between Kubernetes objects and whole-pod decisions: admission, quotas, the ledger of pods, and the filter.

Values and functions, without a watch, a clock or HTTP: those belong to whoever asks.
"""

from hami_plugin.scheduling.admission import admitted
from hami_plugin.scheduling.decisions import patch
from hami_plugin.scheduling.quotas import quota
from hami_plugin.scheduling.sites import Surveyed, rules, stock, survey

__all__ = ["Surveyed", "admitted", "patch", "quota", "rules", "stock", "survey"]
