"""Learning curves as SVG, the same bytes for the same numbers on every machine.

Matplotlib's SVG differs between its versions, and the pictures of the results are compared with
their records byte for byte.
"""

from collections.abc import Sequence

import numpy as np

from sebulba.tools.report.bands import band

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _MARGIN = 480, 240, 60, 36, 24
_COLOUR = "#1f5fa8"


def draw(title: str, curves: Sequence[Sequence[Sequence[float]]]) -> str:
    """Return a picture of returns over env steps: a line per seed, and the mean if there are more.

    Args:
        title: above the picture.
        curves: of each seed, points of env steps, wall time and return.
    """
    lines = [np.array(curve, float)[:, [0, 2]] for curve in curves]  # [N, 2] each
    points = np.concatenate(lines)
    (low_x, low_y), (high_x, high_y) = points.min(axis=0), points.max(axis=0)
    low_x = 0.0
    high_y = high_y if high_y > low_y else low_y + 1.0

    def place(line: np.ndarray) -> str:
        x = _LEFT + (line[:, 0] - low_x) / (high_x - low_x) * (_WIDTH - _LEFT - _MARGIN)
        y = _MARGIN + (high_y - line[:, 1]) / (high_y - low_y) * (_HEIGHT - _MARGIN - _BOTTOM)
        return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))

    thin = 'fill="none" stroke-width="1" stroke-opacity="0.4"'
    shapes = [f'<polyline points="{place(line)}" {thin} stroke="{_COLOUR}"/>' for line in lines]
    mean = band([(line[:, 0], line[:, 1]) for line in lines])
    if mean is not None:
        middle = np.stack([mean.x, mean.mean], axis=1)
        thick = 'fill="none" stroke-width="2"'
        shapes.append(f'<polyline points="{place(middle)}" {thick} stroke="{_COLOUR}"/>')
    base = _HEIGHT - _BOTTOM
    shapes += [
        f'<path d="M{_LEFT} {_MARGIN}V{base}H{_WIDTH - _MARGIN}" fill="none" stroke="black"/>',
        _text(_WIDTH / 2, 14, "middle", title),
        _text(_LEFT - 6, _MARGIN + 4, "end", f"{high_y:,.6g}"),
        _text(_LEFT - 6, base, "end", f"{low_y:,.6g}"),
        _text(_LEFT, base + 16, "middle", "0"),
        _text(_WIDTH - _MARGIN, base + 16, "end", f"{high_x:,.0f} env steps"),
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}"'
    style = 'font-family="sans-serif" font-size="11"'
    body = "\n".join(shapes)
    return f'{head} {style}>\n<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'


def _text(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'
