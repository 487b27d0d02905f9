"""Between Kubernetes objects and whole-pod decisions: admission, quotas, the ledger of pods, and the filter.

Values and functions, without a watch, a clock or HTTP: those belong to whoever asks.
"""

from hami_plugin.scheduler.engine.assignment import patch
from hami_plugin.scheduler.engine.quotas import quota
from hami_plugin.scheduler.engine.survey import Surveyed, rules, stock, survey
from hami_plugin.scheduler.webhook.admission import admitted

__all__ = ["Surveyed", "admitted", "patch", "quota", "rules", "stock", "survey"]
