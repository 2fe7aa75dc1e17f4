"""Reads sales.csv and writes chart.svg and summary.json. Standard library only."""

import csv
import json
from collections import defaultdict
from html import escape

MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
COLOURS = ["#2f6f8f", "#e0873e", "#6a9f58", "#b4517a", "#7d6bb0", "#8c8c8c"]
INK, SOFT, GRID = "#22303a", "#6b7780", "#e4e8eb"


def say(text):
    print(text, flush=True)


def read(path):
    revenue = defaultdict(lambda: [0.0] * 12)
    products = defaultdict(float)
    rows, empty = 0, None
    with open(path, encoding="utf-8", newline="") as source:
        for row in csv.DictReader(source):
            rows += 1
            if empty is None:
                empty = set(row)
            empty = {name for name in empty if not row[name]}
            value = int(row["quantity"]) * float(row["unit_price"])
            revenue[row["region"]][int(row["date"][5:7]) - 1] += value
            products[row["product"]] += value
            if rows % 1000 == 0:
                say(f"  {rows:>5} rows read")
    return rows, revenue, products, sorted(empty)


def nice_step(highest):
    for step in (m * 10 ** e for e in range(2, 9) for m in (1, 2, 2.5, 5)):
        if highest / step <= 5:
            return step


def chart(revenue, order):
    width, height = 960, 520
    left, right, top, bottom = 72, 24, 96, 48
    plot_w, plot_h = width - left - right, height - top - bottom
    totals = [sum(revenue[r][m] for r in order) for m in range(12)]
    step = nice_step(max(totals))
    ceiling = step * -(-max(totals) // step)
    y = lambda value: top + plot_h * (1 - value / ceiling)
    slot = plot_w / 12
    bar = slot * 0.62
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{left}" y="40" font-size="22" font-weight="bold" fill="{INK}">Revenue by month and region, 2024</text>',
        f'<text x="{left}" y="62" font-size="13" fill="{SOFT}">thousand euros, {sum(totals) / 1000:,.0f} in the year</text>',
    ]
    x = width - right
    for i, region in reversed(list(enumerate(order))):
        x -= 22 + 9 * len(region)
        svg.append(f'<rect x="{x}" y="52" width="11" height="11" rx="2" fill="{COLOURS[i % len(COLOURS)]}"/>')
        svg.append(f'<text x="{x + 16}" y="62" font-size="13" fill="{INK}">{escape(region)}</text>')
        x -= 8
    value = 0
    while value <= ceiling:
        svg.append(f'<line x1="{left}" x2="{width - right}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="{GRID if value else SOFT}"/>')
        svg.append(f'<text x="{left - 10}" y="{y(value) + 4:.1f}" font-size="12" fill="{SOFT}" text-anchor="end">{value / 1000:,.0f}</text>')
        value += step
    for month in range(12):
        base, x = 0.0, left + slot * month + (slot - bar) / 2
        for i, region in enumerate(order):
            part = revenue[region][month]
            svg.append(f'<rect x="{x:.1f}" y="{y(base + part):.1f}" width="{bar:.1f}" height="{plot_h * part / ceiling:.1f}" '
                       f'fill="{COLOURS[i % len(COLOURS)]}"><title>{escape(region)}, {MONTHS[month]}: {part:,.0f} EUR</title></rect>')
            base += part
        middle = x + bar / 2
        svg.append(f'<text x="{middle:.1f}" y="{y(base) - 7:.1f}" font-size="12" fill="{INK}" text-anchor="middle">{base / 1000:,.0f}</text>')
        svg.append(f'<text x="{middle:.1f}" y="{height - bottom + 22}" font-size="12" fill="{SOFT}" text-anchor="middle">{MONTHS[month]}</text>')
    svg.append("</svg>")
    return "\n".join(svg) + "\n"


def main():
    say("reading sales.csv")
    rows, revenue, products, empty = read("sales.csv")
    order = sorted(revenue, key=lambda region: -sum(revenue[region]))
    total = sum(map(sum, revenue.values()))
    say(f"{rows} rows, {len(order)} regions, {total:,.2f} EUR; empty columns: {', '.join(empty) or 'none'}")
    for region in order:
        amount = sum(revenue[region])
        say(f"  {region:<5} {amount:>12,.2f} EUR  {'█' * round(40 * amount / total)}")
    with open("chart.svg", "w", encoding="utf-8") as out:
        out.write(chart(revenue, order))
    best = max(products, key=products.get)
    summary = {
        "rows": rows,
        "revenue": round(total, 2),
        "by_region": {region: round(sum(revenue[region]), 2) for region in order},
        "by_month": {MONTHS[m]: round(sum(revenue[r][m] for r in order), 2) for m in range(12)},
        "best_product": best,
        "empty_columns": empty,
    }
    with open("summary.json", "w", encoding="utf-8") as out:
        json.dump(summary, out, ensure_ascii=False, indent=2)
        out.write("\n")
    say(f"best product: {best}")
    say("wrote chart.svg and summary.json")


main()
