// How lines and markers are drawn, the same in a chart and in its legend; palette.py has the same shapes.

const MARKERS = {
  o: (path, x, y, r) => circle(path, x, y, r),
  s: (path, x, y, r) => path.rect(x - 0.9 * r, y - 0.9 * r, 1.8 * r, 1.8 * r),
  D: (path, x, y, r) => polygon(path, x, y, 1.25 * r, [0, 90, 180, 270]),
  d: (path, x, y, r) => polygon(path, x, y, 1.35 * r, [0, 90, 180, 270], 0.6),
  "^": (path, x, y, r) => polygon(path, x, y, 1.3 * r, [270, 30, 150]),
  v: (path, x, y, r) => polygon(path, x, y, 1.3 * r, [90, 210, 330]),
  "<": (path, x, y, r) => polygon(path, x, y, 1.3 * r, [180, 300, 60]),
  ">": (path, x, y, r) => polygon(path, x, y, 1.3 * r, [0, 120, 240]),
  p: (path, x, y, r) => polygon(path, x, y, 1.2 * r, [270, 342, 54, 126, 198]),
  h: (path, x, y, r) => polygon(path, x, y, 1.2 * r, [0, 60, 120, 180, 240, 300]),
  P: (path, x, y, r) => cross(path, x, y, r, 0),
  X: (path, x, y, r) => cross(path, x, y, r, 45),
};
// The strokes of a backend's variants; those after the first round differ in whether their markers are hollow.
const STROKES = [[], [7, 4], [2, 3], [9, 3, 2, 3], [3, 7], [12, 3, 2, 3, 2, 3]];
// The angles of the lines through their hollow markers, since a lone point shows no stroke.
const SPOKES = [[45], [], [90], [0], [0, 90], [45, 135]];
const CEILING_STROKE = [6, 4];
const ROOF_STROKES = [[10, 3, 2, 3], [1.5, 3]];

function circle(path, x, y, r) {
  path.moveTo(x + r, y);
  path.arc(x, y, r, 0, 2 * Math.PI);
}

function polygon(path, x, y, r, degrees, narrow = 1) {
  degrees.forEach((degree, number) => {
    const angle = (degree * Math.PI) / 180;
    const point = [x + narrow * r * Math.cos(angle), y + r * Math.sin(angle)];
    if (number) path.lineTo(...point);
    else path.moveTo(...point);
  });
  path.closePath();
}

function cross(path, x, y, r, turned) {
  const thick = 20;
  const corners = [0, 90, 180, 270].flatMap((arm) => [arm - thick, arm + thick, arm + 45]);
  corners.forEach((degree, number) => {
    const angle = ((degree + turned) * Math.PI) / 180;
    const reach = number % 3 === 2 ? 0.48 * r : 1.2 * r;
    const point = [x + reach * Math.cos(angle), y + reach * Math.sin(angle)];
    if (number) path.lineTo(...point);
    else path.moveTo(...point);
  });
  path.closePath();
}

function strokeOf(line) {
  return STROKES[line.variant % STROKES.length];
}

// The size of a marker, from its middle: the widest line lies below the others, and is seen beside them.
function reachOf(line) {
  return line.wide ? 8 : 4;
}

function isHollow(line) {
  return line.variant > 0 && line.variant <= STROKES.length;
}

function drawMarker(path, line, x, y, r) {
  MARKERS[line.marker](path, x, y, r);
  if (!isHollow(line)) return;
  for (const degrees of SPOKES[line.variant % SPOKES.length]) {
    const angle = (degrees * Math.PI) / 180;
    const [dx, dy] = [r * Math.cos(angle), r * Math.sin(angle)];
    path.moveTo(x - dx, y + dy);
    path.lineTo(x + dx, y - dy);
  }
}
