"""Paper cards: a vendor that is only scheduled, and has an agent of its own on the nodes."""

from __future__ import annotations

from hami_plugin.config.vendors import ResourceName, VendorSettings, setting
from hami_plugin.scheduler.engine.devices import amount, count_request
from hami_plugin.scheduler.engine.policy import Policy, standard
from hami_plugin.sdk import AnnotationKeys, Family, Resources, Vendor

DEVICE_TYPE = "Paper"


class PaperSettings(VendorSettings):
    """Keys of the section ``paper``."""

    count: ResourceName = setting("resourceCountName", "paper.example/card", "Number of cards.")


def families(settings: PaperSettings) -> tuple[Family, ...]:
    """The one family of this vendor."""
    policy = Policy(request=count_request(DEVICE_TYPE, count=amount(settings.count)), serves=standard(DEVICE_TYPE))
    resources = Resources(device_type=DEVICE_TYPE, count=settings.count)
    return (Family.registered(resources, AnnotationKeys.of_agent("paper"), policy),)


VENDOR = Vendor(name="paper", title="Paper cards", settings=PaperSettings, families=families)
