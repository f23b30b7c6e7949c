"""Small PDF files with text."""

from __future__ import annotations

from pathlib import Path


def write_pdf(path: Path, texts: list[str], *, side: int = 144) -> Path:
    """Write a PDF with one line of text on each square page of so many points; `side / 72` inches."""
    kids = " ".join(f"{4 + 2 * at} 0 R" for at in range(len(texts)))
    box, fonts = f"[0 0 {side} {side}]", "<< /Font << /F 3 0 R >> >>"
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(texts)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for at, text in enumerate(texts):
        drawn = f"1 0 0 rg 0 0 {side // 2} {side} re f 0 g BT /F 12 Tf 8 {side - 20} Td ({text}) Tj ET"
        objects += [
            f"<< /Type /Page /Parent 2 0 R /MediaBox {box} /Contents {5 + 2 * at} 0 R /Resources {fonts} >>",
            f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream",
        ]
    body, places = "%PDF-1.4\n", []
    for at, one in enumerate(objects, 1):
        places.append(len(body))
        body += f"{at} 0 obj\n{one}\nendobj\n"
    rows = "".join(f"{place:010} 00000 n \n" for place in places)
    table = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{rows}"
    end = f"{table}trailer << /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{len(body)}\n%%EOF\n"
    path.write_text(body + end)
    return path
