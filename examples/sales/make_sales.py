"""Makes sales.csv, the same bytes every time."""

import csv
import datetime
import random

ROWS = 4000
REGIONS = {"Nord": 1.0, "Süd": 1.35, "Ost": 0.7, "West": 1.15}
PRODUCTS = {
    "Bürostuhl, höhenverstellbar": 189.0,
    'Monitor 27"': 249.9,
    "Schreibtisch": 329.0,
    "Leselampe": 39.5,
    "Kopfhörer": 79.0,
    'Regal "Übersee", 5 Böden': 119.0,
}
CUSTOMERS = [
    "Müller & Söhne", "Bäckerei Groß", "Café Zürich, Inh. Jäggi", "Ötztal Sport",
    'Gasthof "Zum Löwen"', "Schäfer Logistik", "Lübeck Marine, KG", "Jörg Weiß",
]
NOTES = [
    "", "", "", "", "express", "Lieferung, bitte klingeln", 'Zitat: "wie immer"',
    "Hinterhaus\n2. Stock links", "Rückruf gewünscht",
]


def main():
    rng = random.Random(20240229)
    start = datetime.date(2024, 1, 1)
    rows = []
    for _ in range(ROWS):
        day = start + datetime.timedelta(days=rng.randrange(366))
        region = rng.choices(list(REGIONS), weights=list(REGIONS.values()))[0]
        product = rng.choice(list(PRODUCTS))
        # More is sold before Christmas, less in summer, and the south grows.
        season = {7: 0.7, 8: 0.65, 11: 1.5, 12: 1.8}.get(day.month, 1.0)
        growth = 1 + day.month / 20 if region == "Süd" else 1
        quantity = max(1, round(rng.expovariate(0.35) * season * growth))
        price = round(PRODUCTS[product] * rng.choice([1, 1, 1, 0.95, 0.9]), 2)
        rows.append([day.isoformat(), region, rng.choice(CUSTOMERS), product, quantity,
                     f"{price:.2f}", "", rng.choice(NOTES)])
    rows.sort(key=lambda row: row[0])
    with open("sales.csv", "w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["order", "date", "region", "customer", "product", "quantity",
                         "unit_price", "discount_code", "note"])
        for number, row in enumerate(rows, 1):
            writer.writerow([f"A{number:05d}", *row])


main()
