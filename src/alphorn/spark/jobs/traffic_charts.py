"""Pictures of traffic: PNG files, and one HTML page that holds them and the tables by itself."""

import base64
import datetime
import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.dates
import matplotlib.ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Row = Mapping[str, Any]
DESTINATIONS_MAX = 8  # lines that can be told apart; the rest is one more
# Colours that stay apart for colour-blind readers (Okabe and Ito), the darkest first.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31", "#999999")
OTHERS = "all others"
_INK, _GRID = "#333333", "#DDDDDD"


def draw(rates: Sequence[Row], totals: Sequence[Row], delays: Sequence[Row], folder: Path) -> list[Path]:
    """Writes `rates.png`, `sizes.png`, `delays.png` where there are any, and `traffic.html`; gives their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {"rates": _draw_rates(rates), "sizes": _draw_sizes(rates)}
    if delays:
        pictures["delays"] = _draw_delays(delays)
    written = []
    images = {}
    for name, figure in pictures.items():
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=120)
        images[name] = stream.getvalue()
        path = folder / f"{name}.png"
        path.write_bytes(images[name])
        written.append(path)
    page = folder / "traffic.html"
    page.write_text(_page(images, totals, delays), encoding="utf-8")
    return [*written, page]


def _draw_rates(rates: Sequence[Row]) -> Figure:
    figure, axes = _figure("Messages in a second")
    names = busiest(rates)
    for name, colour in zip(names, COLOURS, strict=False):
        times, values = series(rates, name, "rate", names)
        axes.plot(
            times,
            values,
            color=colour,
            linewidth=1.8,
            marker="o" if len(times) < 40 else None,
            markersize=3.5,
            label=name,
        )
    axes.set_ylabel("messages / s")
    _finish_times(axes, names)
    return figure


def _draw_sizes(rates: Sequence[Row]) -> Figure:
    figure, axes = _figure("Size of bodies (solid: median; dotted: 99 of 100 are no larger)")
    names = [name for name in busiest(rates) if name != OTHERS]
    for name, colour in zip(names, COLOURS, strict=False):
        times, middle = series(rates, name, "size_p50", names)
        _, high = series(rates, name, "size_p99", names)
        axes.plot(
            times,
            middle,
            color=colour,
            linewidth=1.8,
            marker="o" if len(times) < 40 else None,
            markersize=3.5,
            label=name,
        )
        axes.plot(times, high, color=colour, linewidth=1.4, linestyle=":")
    axes.set_ylabel("bytes")
    _finish_times(axes, names)
    return figure


def _draw_delays(delays: Sequence[Row]) -> Figure:
    rows = list(delays)[: 2 * DESTINATIONS_MAX][::-1]
    figure, axes = _figure("From a producer's batch to its first delivery", height=1.8 + 0.45 * len(rows))
    kinds = (("ms_p99", "#56B4E9", "99 of 100"), ("ms_p95", "#0072B2", "95 of 100"), ("ms_p50", "#000000", "median"))
    for place, row in enumerate(rows):
        axes.hlines(place, row["ms_p50"], row["ms_p99"], color=_GRID, linewidth=4, zorder=1)
        for column, colour, label in kinds:
            axes.scatter(row[column], place, color=colour, s=42, zorder=2, label=label if place == 0 else None)
    axes.set_yticks(range(len(rows)), [short(row["destination"]) for row in rows])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xlim(left=0)
    axes.set_xlabel("milliseconds")
    axes.grid(axis="y", visible=False)
    _legend(axes)
    return figure


def busiest(rates: Sequence[Row]) -> list[str]:
    """The destinations with the most messages, and one name for all others where there are more."""
    sums: dict[str, int] = {}
    for row in rates:
        sums[row["destination"]] = sums.get(row["destination"], 0) + row["messages"]
    names = sorted(sums, key=lambda name: (-sums[name], name))
    return names if len(names) <= DESTINATIONS_MAX else [*names[:DESTINATIONS_MAX], OTHERS]


def series(rates: Sequence[Row], name: str, column: str, names: Sequence[str]) -> tuple[list[float], list[float]]:
    """The line of one destination, or the sum of all that have no line of their own; times are days, as drawn."""
    found: dict[datetime.datetime, float] = {}
    for row in rates:
        if row["destination"] == name or (name == OTHERS and row["destination"] not in names):
            found[row["from"]] = found.get(row["from"], 0) + row[column]
    times = sorted(found)
    days = [float(matplotlib.dates.date2num(time)) for time in times]  # type: ignore[no-untyped-call]
    return days, [found[time] for time in times]


def short(name: str, characters: int = 32) -> str:
    """A name that fits beside a picture."""
    return name if len(name) <= characters else f"{name[: characters - 1]}…"


def _figure(title: str, *, height: float = 4.2) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(9.0, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=12, color=_INK)
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_INK, labelsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _finish_times(axes: Axes, names: Sequence[str]) -> None:
    axes.set_ylim(bottom=0)
    locator = matplotlib.dates.AutoDateLocator()  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(matplotlib.dates.ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes.yaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.xaxis_date("UTC")
    axes.set_xlabel("time (UTC)")
    if names:
        _legend(axes)


def _legend(axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles,
        [short(str(label)) for label in labels],
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        frameon=False,
        fontsize=9,
    )


def _page(images: Mapping[str, bytes], totals: Sequence[Row], delays: Sequence[Row]) -> str:
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Traffic</title><style>",
        "body{font-family:system-ui,sans-serif;color:#333;max-width:1000px;margin:2em auto;padding:0 1em}",
        "table{border-collapse:collapse;margin:1em 0}",
        "th,td{padding:.3em .8em;text-align:left;border-bottom:1px solid #ddd}",
        "td.number{text-align:right;font-variant-numeric:tabular-nums}img{max-width:100%}</style></head><body>",
        "<h1>Traffic</h1>",
        _table("Destinations", totals),
    ]
    for name, data in images.items():
        source = base64.b64encode(data).decode()
        parts.append(f"<p><img alt='{name}' src='data:image/png;base64,{source}'></p>")
    if delays:
        parts.append(_table("Milliseconds on the way", delays))
    return "".join([*parts, "</body></html>\n"])


def _table(title: str, rows: Sequence[Row]) -> str:
    if not rows:
        return f"<h2>{html.escape(title)}</h2><p>There is nothing.</p>"
    names = list(rows[0])
    head = "".join(f"<th>{html.escape(name.replace('_', ' '))}</th>" for name in names)
    body = "".join(f"<tr>{''.join(_cell(row[name]) for name in names)}</tr>" for row in rows)
    return f"<h2>{html.escape(title)}</h2><table><tr>{head}</tr>{body}</table>"


def _cell(value: object) -> str:
    if isinstance(value, int | float):
        return f"<td class='number'>{value:,}</td>"
    if isinstance(value, datetime.datetime):
        return f"<td>{value:%Y-%m-%d %H:%M:%S}</td>"
    return f"<td>{html.escape(str(value))}</td>"
