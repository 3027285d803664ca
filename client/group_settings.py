"""What the settings of a client say of its group, and what they may not say."""

from __future__ import annotations

from collections.abc import Collection

from databus.client.checkpoints.fenced import FencedCheckpointStore
from databus.client.subscription import Subscription
from databus.conf.settings import ClientSettings
from databus.schemas.errors import SettingsError


def group_name(settings: ClientSettings, subscription: Subscription) -> str:
    """Return the name of a registration's group: each of a client's registrations has its own."""
    is_only = subscription.name == "default"
    return settings.group if is_only else f"{settings.group}/{subscription.name}"


def check_group(settings: ClientSettings, given: object | None) -> None:
    """Raise SettingsError if a group cannot meet, or not in the store that is `given`."""
    if not settings.group:
        return
    group_store(settings)
    if given is not None and not isinstance(given, FencedCheckpointStore):
        raise SettingsError(
            f"{type(given).__name__} has no `begin_term` and `save_under`, so a group cannot "
            "store its checkpoints there: leave `checkpoints` out"
        )


def check_new_group(group: str, others: Collection[str]) -> None:
    """Raise SettingsError if a registration of the same client is that group already."""
    if group and group in others:
        raise SettingsError(
            f"two registrations are group {group!r}: give all but one a `name`, which makes "
            "groups of their own of them"
        )


def group_store(settings: ClientSettings) -> str:
    """Return the URL of the records where a group meets; raise SettingsError."""
    if settings.coordinator:
        return settings.coordinator
    if settings.checkpoint_dir is None:
        raise SettingsError(
            f"group = {settings.group!r} needs `coordinator`, or a `checkpoint_dir` that its "
            "processes share: there they meet"
        )
    return f"file:{settings.checkpoint_dir.absolute()}"
