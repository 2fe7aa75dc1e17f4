"""Makes the documents that the proof of the workbench reads, with the workbench's own
libraries: what a user would have uploaded."""

import subprocess

import docx
import openpyxl
import pptx
from PIL import Image, ImageDraw, ImageFont
from reportlab.lib.pagesizes import A4
from reportlab.pdfgen import canvas

pdf = canvas.Canvas("report.pdf", pagesize=A4)
for page in range(1, 41):
    pdf.drawString(72, 780, f"Report, page {page}")
    pdf.drawString(72, 760, f"The harbour handled {page * 111} containers.")
    pdf.showPage()
pdf.save()

font = ImageFont.truetype("/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf", 44)
pages = []
for number in (4711, 4712):
    page = Image.new("RGB", (1240, 1754), "white")
    draw = ImageDraw.Draw(page)
    draw.text((120, 200), f"Invoice {number} for Blue Harbour", font=font, fill="black")
    draw.text((120, 300), "Total amount 98,50 EUR", font=font, fill="black")
    pages.append(page)
pages[0].save("scan.pdf", save_all=True, append_images=pages[1:], resolution=150)

letter = docx.Document()
letter.add_heading("Offer", 1)
letter.add_paragraph("We deliver forty crates of oranges to Gdańsk.")
letter.save("letter.docx")
# The format of the nineties has no library; the office program writes it.
letter.paragraphs[1].text = "We deliver forty crates of lemons to Málaga."
letter.save("old.docx")
subprocess.run(["soffice", "--headless", "--convert-to", "doc", "old.docx"], check=True, stdout=subprocess.DEVNULL)

book = openpyxl.Workbook()
book.active.append(["city", "crates"])
for row in (("Gdańsk", 40), ("Málaga", 25), ("Köln", 17)):
    book.active.append(row)
book.save("stock.xlsx")

talk = pptx.Presentation()
slide = talk.slides.add_slide(talk.slide_layouts[0])
slide.shapes.title.text = "Übersicht 京都"
slide.placeholders[1].text = "Forty crates"
talk.save("talk.pptx")

with open("sales.csv", "w", encoding="utf-8") as sales:
    sales.write("city,amount\n")
    for i in range(100_000):
        sales.write(f"{('Köln', 'Gdańsk', 'Málaga')[i % 3]},{i % 97}\n")
