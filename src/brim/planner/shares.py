"""What share of its speeds a device really reaches in training steps: kept, and used by later plans.

    device = known(named("rtx-4090"))   # as it was, unless such a device was measured earlier (calibration.py)

They lie below the user's cache folder, under the kind of device and JAX's version. The shares order candidates by time.
They never decide what fits: bounds, targets and compiled programs do not see them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

from brim.hardware import host, probe
from brim.hardware.facts import Device

MOST_PRODUCT_SHARE, MOST_BANDWIDTH_SHARE, LEAST_SHARE = 1.25, 4.0, 0.02


@dataclass(frozen=True)
class Shares:
    """Share of the peak in matrix products, and of the bandwidth in everything else."""

    products: float
    bandwidth: float


def known(device: Device, cache_folder: Path | None = None) -> Device:
    """The device with shares that were measured earlier on one of its kind; as it was if there are none."""
    try:
        shares = Shares(**probe.read_kept(_path(cache_folder))[_key(device)])
    except (KeyError, TypeError):
        return device
    return with_shares(device, shares) if is_plausible(shares) else device


def is_calibrated(device: Device) -> bool:
    """Whether the shares of a device were measured."""
    return device.product_share is not None and device.bandwidth_share is not None


def basis(device: Device) -> str:
    """What predicted times rest on, in a few words that every plan should say."""
    if device.product_share is None or device.bandwidth_share is None:
        return "uncalibrated: a prediction"
    return (
        f"calibrated on this device: {device.product_share:.0%} of its peak in products, "
        f"{device.bandwidth_share:.0%} of its bandwidth"
    )


def keep(device: Device, shares: Shares, cache_folder: Path | None = None) -> None:
    """Keep shares that were measured on a device for all of its kind."""
    path = _path(cache_folder)
    with contextlib.suppress(OSError):  # it is measured again the next time, and nothing else
        probe.write_kept(path, {**probe.read_kept(path), _key(device): dataclasses.asdict(shares)})


def is_plausible(shares: Shares) -> bool:
    """Whether shares are such as devices reach; what was read from a file may be anything."""
    try:
        return LEAST_SHARE <= shares.products <= MOST_PRODUCT_SHARE and LEAST_SHARE <= shares.bandwidth <= (
            MOST_BANDWIDTH_SHARE
        )
    except TypeError:
        return False


def with_shares(device: Device, shares: Shares) -> Device:
    """The device with its shares."""
    return dataclasses.replace(device, product_share=shares.products, bandwidth_share=shares.bandwidth)


def _key(device: Device) -> str:
    count = f" x {host.processor_count()}" if device.platform == "cpu" else ""
    return f"{device.kind}{count}, JAX {importlib.metadata.version('jax')}"


def _path(cache_folder: Path | None) -> Path:
    return (cache_folder or probe.cache_folder()) / "shares.json"
