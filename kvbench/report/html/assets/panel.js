// One pair of axes: medians with their bands, the ceiling, marks, a tip at the pointer, zoom.

const PER_LINE = 3;  // series of a line: medians, lower and upper ends of the band
const NEAR_PX = 40;
const MARK_PX = 15;
const ABOVE_PX = 6;  // between labels and lines: markers of points at the edge reach there

class Panel {
  // `chart` has what its panels share: the axes, their full ranges, the hidden lines.
  constructor(chart, panel, node) {
    this.chart = chart;
    this.panel = panel;
    this.node = node;
    this.view = null;  // {x: [low, high], y: [low, high]} while zoomed
    this.plot = null;
  }

  build(width) {
    this.plot?.destroy();
    const height = Math.round(Math.max(220, Math.min(340, 0.62 * width)));
    this.plot = new uPlot(this.options(width, height), this.data(), this.node);
    this.plot.root.setAttribute("aria-hidden", "true");  // the tables say the same in words
  }

  zoomTo(view) {
    this.view = view;
    this.plot?.setScale("x", { min: this.range("x")[0], max: this.range("x")[1] });
  }

  // Magnifies about the middle (factor below 1), moves by shares of the width.
  zoomBy(factor, shift) {
    const [x, y] = [this.range("x"), this.range("y")];
    const scale = this.chart.spec.x.scale;
    const [low, high] = x.map((value) => forward(scale, value));
    const middle = (low + high) / 2 + shift * (high - low);
    const half = ((high - low) / 2) * factor;
    this.zoomTo({ x: [backward(scale, middle - half), backward(scale, middle + half)], y });
  }

  range(axis) {
    return this.view ? this.view[axis] : this.chart.full[axis];
  }

  visible() {
    return this.panel.lines.filter((line) => !this.chart.hidden.has(line.label));
  }

  data() {
    if (!this.panel.lines.length) return [this.chart.full.x, [null, null]];
    return uPlot.join(this.panel.lines.map((line) => [line.x, line.y, line.low, line.high]));
  }

  options(width, height) {
    const { x, y } = this.chart.spec;
    return {
      width,
      height,
      title: this.title(),
      padding: [ABOVE_PX + MARK_PX * this.markCount(), null, null, null],  // labels stand above the lines, whatever the zoom
      legend: { show: false },
      cursor: {
        drag: { x: true, y: true, uni: 25, setScale: false },
        points: { show: false },
        bind: { dblclick: () => () => { this.zoomTo(null); } },
      },
      scales: {
        x: { time: false, ...kind(x.scale), range: () => this.range("x") },
        y: { ...kind(y.scale), range: () => this.range("y") },
      },
      axes: [
        this.axis(x, {
          ...(x.unit === "figure" ? {} : { splits: () => this.ticks(), filter: (_, splits) => splits }),
          grid: { show: false },
          ...(x.unit === "name" ? { rotate: 40, size: 24 + 4.6 * Math.max(...x.names.map((name) => name.length)) } : { size: 30 }),
        }),
        this.axis(y, { size: 56 }),
      ],
      series: [{}, ...this.series()],
      bands: this.panel.lines.map((line, number) => ({
        series: [PER_LINE * number + 3, PER_LINE * number + 2],
        fill: `${this.ink(line)}30`,
      })),
      hooks: {
        draw: [() => this.drawMarks()],
        setCursor: [() => this.chart.point(this, this.nearest())],
        setSelect: [() => this.zoomToSelection()],
        ready: [(plot) => this.listen(plot)],
      },
    };
  }

  title() {
    const { title, ceiling } = this.panel;
    return ceiling === null ? title : `${title} · ceiling ${figure(ceiling)} ${this.chart.spec.y.label}`;
  }

  markCount() {
    return this.panel.lines.flatMap((line) => line.marks).filter((mark) => mark.text).length;
  }

  axis(axis, more) {
    return {
      stroke: colour("text"),
      grid: { stroke: colour("rule"), width: 1 },
      ticks: { stroke: colour("faint"), width: 1, size: 4 },
      label: axis.label,
      labelSize: 18,
      labelGap: 0,
      font: "11px system-ui, sans-serif",
      labelFont: "12px system-ui, sans-serif",
      values: (_, splits) => splits.map((value) => (value === null ? "" : this.tickText(axis, value))),
      ...more,
    };
  }

  tickText(axis, value) {
    return axis.unit === "figure" ? String(Number(value.toPrecision(3))) : shown(axis, value);
  }

  series() {
    return this.panel.lines.flatMap((line) => {
      const show = !this.chart.hidden.has(line.label);
      const ink = this.ink(line);
      const edge = { show, stroke: "transparent", width: 0, spanGaps: true, points: { show: false } };
      const marker = {
        show: true,
        size: 2 * reachOf(line),
        width: 1.4,
        stroke: ink,
        fill: isHollow(line) ? colour("page") : ink,
        paths: (plot, series) => this.markers(plot, series, line),
      };
      const median = { show, label: line.label, stroke: ink, width: line.wide ? 5 : 1.8, spanGaps: true, points: marker };
      return [{ ...median, dash: strokeOf(line) }, edge, edge];
    });
  }

  ink(line) {
    return inkOn(colour("text"), line.colour);
  }

  markers(plot, series, line) {
    const [xs, ys] = [plot.data[0], plot.data[series]];
    const path = new Path2D();
    for (let number = 0; number < xs.length; number += 1) {
      const inside = xs[number] >= plot.scales.x.min && xs[number] <= plot.scales.x.max;
      if (!inside || ys[number] === null || ys[number] === undefined) continue;
      const [x, y] = [plot.valToPos(xs[number], "x", true), plot.valToPos(ys[number], "y", true)];
      drawMarker(path, line, x, y, 0.9 * reachOf(line) * devicePixelRatio);
    }
    const clip = new Path2D();
    const { left, top, width, height } = plot.bbox;
    const room = (ABOVE_PX - 2) * devicePixelRatio;
    clip.rect(left - room, top - room, width + 2 * room, height + 2 * room);
    return { stroke: path, fill: path, clip, flags: 3 };
  }

  // Measured values are the ticks: all that have room, powers of two first.
  ticks() {
    const [low, high] = this.range("x");
    const { unit, scale } = this.chart.spec.x;
    const room = { bytes: 50, name: 14 }[unit] ?? 34;
    const width = this.plot ? this.plot.bbox.width / devicePixelRatio : 400;
    const pixels = (value) => (width * (forward(scale, value) - forward(scale, low))) / (forward(scale, high) - forward(scale, low));
    const inside = this.chart.xs.filter((value) => value >= low && value <= high);
    const round = (value) => (unit === "name" || Number.isInteger(Math.log2(value)) ? 0 : 1);
    const named = [];
    for (const value of [...inside].sort((a, b) => round(a) - round(b) || a - b)) {
      if (named.every((other) => Math.abs(pixels(value) - pixels(other)) >= room)) named.push(value);
    }
    return named.sort((a, b) => a - b);
  }

  drawMarks() {
    const { ctx, bbox } = this.plot;
    const [x, y] = ["x", "y"].map((axis) => (value) => this.plot.valToPos(value, axis, true));
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.lineWidth = devicePixelRatio;
    ctx.textBaseline = "alphabetic";
    ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    if (this.panel.ceiling !== null) {
      const level = y(this.panel.ceiling);
      this.drawPath(ctx, [[bbox.left, level], [bbox.left + bbox.width, level]], CEILING_STROKE, colour("faint"));
    }
    for (const roof of this.panel.roofs) {
      const points = roof.x.map((value, number) => [x(value), y(roof.y[number])]);
      this.drawPath(ctx, points, ROOF_STROKES[this.chart.roofs.indexOf(roof.label)], colour("text"));
    }
    const marks = this.visible().flatMap((line) => line.marks.map((mark) => ({ line, mark })));
    for (const { line, mark } of marks) this.drawMark(ctx, bbox, line, mark, x, y);
    if (!this.panel.lines.length) ctx.fillText("not measured", bbox.left + bbox.width / 2, bbox.top + bbox.height / 2);
    ctx.restore();
    this.drawLabels(marks.filter(({ mark }) => mark.text));
  }

  drawPath(ctx, points, stroke, ink) {
    ctx.strokeStyle = ink;
    ctx.setLineDash(stroke.map((length) => length * devicePixelRatio));
    ctx.beginPath();
    for (const point of points) ctx.lineTo(...point);
    ctx.stroke();
    ctx.setLineDash([]);
  }

  // Shades a jump, rings a point.
  drawMark(ctx, bbox, line, mark, x, y) {
    if (mark.low < mark.high) {
      ctx.fillStyle = `${this.ink(line)}22`;
      ctx.fillRect(x(mark.low), bbox.top, x(mark.high) - x(mark.low), bbox.height);
      return;
    }
    ctx.strokeStyle = this.ink(line);
    ctx.beginPath();
    ctx.arc(x(mark.low), y(line.y[line.x.indexOf(mark.low)]), 8 * devicePixelRatio, 0, 2 * Math.PI);
    ctx.stroke();
  }

  // Writes what is marked between the title and the lines, where a zoom brings no line.
  drawLabels(marks) {
    const { ctx, bbox } = this.plot;
    ctx.save();
    ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textBaseline = "alphabetic";
    ctx.textAlign = "left";
    ctx.fillStyle = colour("text");
    const first = bbox.top - (ABOVE_PX - 2 + MARK_PX * this.markCount()) * devicePixelRatio;
    marks.forEach(({ line, mark }, index) => {
      const label = `${line.label}: ${mark.text}`;
      ctx.fillText(label, bbox.left, first + (index + 0.7) * MARK_PX * devicePixelRatio, bbox.width);
    });
    ctx.restore();
  }

  // The point of a visible line that is nearest to the pointer, if any is near.
  nearest() {
    const { left, top } = this.plot.cursor;
    if (left < 0) return null;
    let best = null;
    for (const line of this.visible()) {
      line.x.forEach((value, number) => {
        if (line.y[number] === null) return;
        const dx = this.plot.valToPos(value, "x") - left;
        const dy = this.plot.valToPos(line.y[number], "y") - top;
        const distance = Math.hypot(dx, dy);
        if (distance < NEAR_PX && (!best || distance < best.distance)) best = { line, number, distance };
      });
    }
    return best;
  }

  zoomToSelection() {
    const { left, top, width, height } = this.plot.select;
    if (width < 3 && height < 3) return;
    const full = this.plot.over.getBoundingClientRect();
    const x = [left, left + width].map((at) => this.plot.posToVal(at, "x"));
    const y = height < full.height ? [top + height, top].map((at) => this.plot.posToVal(at, "y")) : this.range("y");
    this.plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.zoomTo({ x: width < full.width ? x : this.range("x"), y });
  }

  listen(plot) {
    let pressed = null;
    plot.over.addEventListener("mousedown", (event) => { pressed = [event.clientX, event.clientY]; });
    plot.over.addEventListener("click", (event) => {
      const still = pressed && Math.hypot(event.clientX - pressed[0], event.clientY - pressed[1]) < 4;
      if (still) this.chart.choose(this.nearest());
    });
    plot.over.addEventListener("mouseleave", () => this.chart.point(this, null));
  }
}

function kind(scale) {
  if (scale === "linear") return {};
  if (scale === "symlog2") return { distr: 100, fwd: (value) => forward(scale, value), bwd: (value) => backward(scale, value) };
  return { distr: 3, log: scale === "log2" ? 2 : 10 };
}

// Where a value stands on its axis, in octaves where that is logarithmic; symlog2 is linear up to 1 and so has a 0.
function forward(scale, value) {
  if (scale === "linear" || (scale === "symlog2" && value <= 1)) return value;
  return Math.log2(value) + (scale === "symlog2" ? 1 : 0);
}

function backward(scale, position) {
  if (scale === "linear" || (scale === "symlog2" && position <= 1)) return position;
  return 2 ** (position - (scale === "symlog2" ? 1 : 0));
}
