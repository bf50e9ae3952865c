"""Learning curves as SVG, the same bytes for the same numbers on every machine.

Matplotlib's SVG differs between its versions, and the pictures of the results are compared with
their records byte for byte.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from sebulba.evaluation.statistics import bootstrap_interval, interquartile_mean

Curves = Sequence[Sequence[Sequence[float]]]
"""Of each seed, points of env steps, wall time in seconds and return."""

_PANEL, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 400, 280, 56, 34, 30, 20
_COLOURS = ("#1f5fa8", "#c8553d", "#3c8d53", "#8a5aa8", "#8c6d1f")
_NUM_POINTS = 60


def draw(title: str, configs: Mapping[str, Curves]) -> str:
    """Return a picture of returns over env steps and over wall time.

    Each config has a line, the interquartile mean over its seeds, and its 95 % bootstrap interval
    where every seed has data; a single seed has its line alone. The time is the fastest seed's.

    Args:
        title: above the picture.
        configs: the curves of each config, by its name.
    """
    bands = {name: _band(curves) for name, curves in configs.items()}
    minutes = {
        name: np.stack([_minutes(configs[name], steps), *returns])
        for name, (steps, *returns) in bands.items()
    }
    shapes = [_text(_PANEL, 14, "middle", title, "black")]
    shapes += _panel(0, bands, "env steps")
    shapes += _panel(_PANEL, minutes, "minutes")
    for i, name in enumerate(configs):
        shapes.append(_text(_LEFT + 8, _TOP + 12 + 14 * i, "start", name, _colour(i)))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * _PANEL}" height="{_HEIGHT}"'
    style = 'font-family="sans-serif" font-size="11"'
    body = "\n".join(shapes)
    return f'{head} {style}>\n<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'


def _band(curves: Curves) -> np.ndarray:
    """Return `[4, N]`: env steps, and interquartile mean, lower and upper bound of the return."""
    lines = [np.array(curve, float) for curve in curves]
    first, last = max(line[0, 0] for line in lines), min(line[-1, 0] for line in lines)
    steps = np.linspace(first, last, _NUM_POINTS)
    values = np.stack([np.interp(steps, line[:, 0], line[:, 2]) for line in lines], axis=1)
    bounds = [bootstrap_interval(each, seed=0) for each in values]
    return np.stack([steps, interquartile_mean(values), *np.transpose(bounds)])


def _minutes(curves: Curves, env_steps: np.ndarray) -> np.ndarray:
    """Return when the fastest seed, which other work delayed least, had taken these env steps."""
    steps, seconds, _ = np.array(min(curves, key=lambda curve: curve[-1][1]), float).T
    return np.interp(env_steps, steps, seconds) / 60.0


def _panel(left: float, bands: Mapping[str, np.ndarray], label: str) -> list[str]:
    high_x = max(x.max() for x, *_ in bands.values())
    low_y = min(low.min() for _, _, low, _ in bands.values())
    high_y = max(high.max() for *_, high in bands.values())
    high_y = high_y if high_y > low_y else low_y + 1.0
    start, end, base = left + _LEFT, left + _PANEL - _RIGHT, _HEIGHT - _BOTTOM

    def place(x: np.ndarray, y: np.ndarray) -> str:
        x = start + x / high_x * (end - start)
        y = _TOP + (high_y - y) / (high_y - low_y) * (base - _TOP)
        return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))

    shapes = []
    for i, (x, mean, low, high) in enumerate(bands.values()):
        area = place(np.concatenate([x, x[::-1]]), np.concatenate([low, high[::-1]]))
        shapes.append(f'<polygon points="{area}" fill="{_colour(i)}" fill-opacity="0.2"/>')
        line = f'fill="none" stroke="{_colour(i)}" stroke-width="2"'
        shapes.append(f'<polyline points="{place(x, mean)}" {line}/>')
    axes = f"M{start} {_TOP}V{base}H{end}"
    return [
        *shapes,
        f'<path d="{axes}" fill="none" stroke="black"/>',
        _text(start - 6, _TOP + 4, "end", f"{high_y:,.4g}", "black"),
        _text(start - 6, base, "end", f"{low_y:,.4g}", "black"),
        _text(start, base + 16, "middle", "0", "black"),
        _text(end, base + 16, "end", f"{high_x:,.0f} {label}", "black"),
    ]


def _colour(i: int) -> str:
    return _COLOURS[i % len(_COLOURS)]


def _text(x: float, y: float, anchor: str, text: str, colour: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{text}</text>'
