"""Drawing with matplotlib, which is imported only when something is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def save(figure: Any, path: Path, dpi: int = 120) -> list[Path]:
    """Save a figure as PNG and SVG, the same files for the same runs. `savefig` would lay it out and draw it twice for
    each."""
    import matplotlib.pyplot as plt
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    path.parent.mkdir(parents=True, exist_ok=True)
    png, svg = (path.with_name(f"{path.name}{suffix}") for suffix in (".png", ".svg"))
    figure.set_dpi(dpi)
    FigureCanvasAgg(figure)
    figure.draw_without_rendering()  # which is what lays it out
    figure.set_layout_engine("none")
    figure.canvas.print_png(png)
    vector: Any = FigureCanvasSVG(figure)
    with plt.rc_context({"svg.hashsalt": "gradlab"}):
        vector.print_svg(svg, metadata={"Date": None})
    plt.close(figure)
    return [png, svg]


def pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
