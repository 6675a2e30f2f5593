"""The book's one figure style: colors by component, sizes, and how a figure is shown in a notebook.

The palette is Okabe and Ito's, made to be told apart under the common kinds of color blindness
(https://jfly.uni-koeln.de/color/). A component of the ledger has the same color in every figure.
"""

from typing import Final

import matplotlib as mpl
import matplotlib.pyplot as plt
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, YELLOW, GREY = "#56B4E9", "#CC79A7", "#F0E442", "#7A7A7A"

COMPONENT_COLORS: Final = {
    "weights": BLUE,
    "gradients": ORANGE,
    "optimizer state": GREEN,
    "master weights": SKY,
    "activations": RED,
    "loss": PURPLE,
    "temporaries": GREY,
    "communication": YELLOW,
}
"""Component of the ledger to color."""

SERIES: Final = (BLUE, RED, GREEN, ORANGE, PURPLE, SKY, GREY)
"""Colors for curves that are no component, in the order of use."""


def use_style() -> None:
    """Set Matplotlib's defaults for the book. Call it once, in a notebook's import cell."""
    mpl.rcParams.update(
        {
            "figure.figsize": (6.4, 3.4),
            "figure.dpi": 100,
            "savefig.dpi": 160,
            "savefig.bbox": "tight",
            "figure.constrained_layout.use": True,
            "figure.facecolor": "white",
            "font.family": "DejaVu Sans",
            "font.size": 11,
            "axes.titlesize": 11,
            "axes.titlelocation": "left",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.prop_cycle": cycler(color=SERIES),
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": "#DDDDDD",
            "grid.linewidth": 0.6,
            "lines.linewidth": 2.0,
            "legend.frameon": False,
        }
    )


def label(axes: Axes, x: float, y: float, text: str, color: str, **kwargs: object) -> None:
    """Write `text` in `color` at data point (x, y), in place of a legend."""
    axes.text(x, y, text, color=color, fontsize=10, **kwargs)  # type: ignore[arg-type]


def show_figure(figure: Figure) -> None:
    """Display `figure` as one PNG, with fixed text beside it so that nbval has something equal to compare."""
    import io

    from IPython.display import display

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=mpl.rcParams["savefig.dpi"], metadata={"Software": None})
    plt.close(figure)
    display({"image/png": buffer.getvalue(), "text/plain": "figure"}, raw=True)
