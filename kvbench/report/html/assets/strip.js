// Raw samples as dots: a row for each visit, outliers and all, over the quartiles and the median.

const STRIP = { width: 640, left: 62, right: 12, row: 22, foot: 34 };

function strip(visits, name, quartiles) {
  const known = visits.map((visit) => ({ round: visit.round, values: visit.columns[name].filter((value) => value !== null) }));
  const all = [...known.flatMap((visit) => visit.values), ...quartiles.filter((value) => value !== null)];
  if (!all.length) return el("p", {}, "no samples");
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const inner = STRIP.width - STRIP.left - STRIP.right;
  const x = (value) => STRIP.left + (high > low ? (inner * (value - low)) / (high - low) : inner / 2);
  const bottom = known.length * STRIP.row + 6;
  const height = bottom + STRIP.foot;
  const label = `${name}: ${all.length} values from ${figure(low)} to ${figure(high)}`;
  const picture = drawn("svg", { viewBox: `0 0 ${STRIP.width} ${height}`, class: "strip", role: "img", "aria-label": label });
  const [q1, median, q3] = quartiles;
  if (q1 !== null && q3 !== null) {
    picture.append(drawn("rect", { x: x(q1), y: 2, width: Math.max(1, x(q3) - x(q1)), height: bottom - 2, class: "box" }));
    picture.append(drawn("line", { x1: x(median), x2: x(median), y1: 2, y2: bottom, class: "median" }));
  }
  known.forEach((visit, index) => {
    const y = 6 + (index + 0.5) * STRIP.row;
    picture.append(drawn("text", { x: 0, y: y + 4 }, `round ${visit.round}`));
    picture.append(...visit.values.map((value, sample) => {
      // side by side where they would lie on one another
      const dot = drawn("circle", { cx: x(value), cy: y + (((sample * 7) % 5) - 2) * 2.4, r: 3 });
      dot.append(drawn("title", {}, `round ${visit.round}, sample ${sample}: ${value}`));
      return dot;
    }));
  });
  picture.append(drawn("line", { x1: STRIP.left, x2: STRIP.width - STRIP.right, y1: bottom, y2: bottom, class: "rule" }));
  for (const [at, anchor] of [[low, "start"], [high, "end"]]) {
    picture.append(drawn("text", { x: x(at), y: bottom + 15, "text-anchor": high > low ? anchor : "middle" }, figure(at)));
  }
  picture.append(drawn("text", { x: STRIP.left + inner / 2, y: bottom + 30, "text-anchor": "middle" }, `${name}, microseconds`));
  return picture;
}
