"""What all pictures of brim share: the style, and writing them whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

INK, QUIET, FAINT = "#1f2937", "#4b5563", "#e5e7eb"
STYLE: Any = {  # the names Matplotlib knows are a type of their own in some releases
    "font.size": 11,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#9ca3af",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
}
DOTS_PER_INCH = 160


@contextmanager
def picture(path: Path, size: tuple[float, float], title: str = "") -> Iterator[Figure]:
    """A figure to draw on; afterwards it is written to `path` as a PNG, in one rename.

    Args:
        path: replaced if it is there.
        size: width and height in inches, of `DOTS_PER_INCH` each.
        title: above the picture.

    Raises:
        OSError: if the picture cannot be written.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
        yield figure
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=15, fontweight="bold")
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".new")
        figure.savefig(temporary, dpi=DOTS_PER_INCH, format="png")
        temporary.replace(path)
