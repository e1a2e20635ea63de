"""Packs a contact sheet of clips (a row each) into few columns: docs/images/humanoid-clips.png.

python benchmarks/contact_sheet.py all --poses 6 --out sheet.png
python docs/images/pack_clips.py sheet.png
"""

import sys
from pathlib import Path

from PIL import Image

PICTURE, MARGIN = 240, 56  # pixels of a pose on the sheet; what is cut off at its left and right
LABEL = (0, 0, 100, 18)
COLUMNS, GAP = 3, 8


def main() -> None:
    sheet = Image.open(sys.argv[1]).convert("RGB")
    clips, poses = sheet.height // PICTURE, sheet.width // PICTURE - 1  # a loop's last pose is its first
    width = PICTURE - 2 * MARGIN
    size = COLUMNS * (poses * width + GAP) - GAP, -(-clips // COLUMNS) * (PICTURE + GAP) - GAP
    packed = Image.new("RGB", size, "white")
    for clip in range(clips):
        left, top = clip % COLUMNS * (poses * width + GAP), clip // COLUMNS * (PICTURE + GAP)
        for pose in range(poses):
            x, y = pose * PICTURE + MARGIN, clip * PICTURE
            packed.paste(sheet.crop((x, y, x + width, y + PICTURE)), (left + pose * width, top))
            label = tuple(a + b for a, b in zip(LABEL, (pose * PICTURE, y) * 2, strict=True))
            packed.paste(sheet.crop(label), (left + pose * width, top))
    target = Path(__file__).with_name("humanoid-clips.png")
    packed.quantize(96).save(target, optimize=True)
    print(f"{target}: {packed.size}, {target.stat().st_size / 1024:.0f} kB")


if __name__ == "__main__":
    main()
