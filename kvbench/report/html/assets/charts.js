// A figure: panels on the same axes, a legend that switches lines, buttons that zoom, the points to save.

const PRINTED_PX = 330;

class LineChart {
  constructor(spec, node, open) {
    this.spec = spec;
    this.node = node;
    this.open = open;
    this.hidden = new Set();
    const panels = spec.grid.flat();
    const lines = panels.flatMap((panel) => panel.lines);
    this.xs = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
    this.roofs = [...new Set(panels.flatMap((panel) => panel.roofs.map((roof) => roof.label)))].sort();
    this.full = { x: padded(spec.x.scale, this.xs), y: this.fullY() };
    const container = node.querySelector(".panels");
    container.classList.toggle("wide", panels.length > 1);
    this.panels = panels.map((panel) => {
      const panelNode = el("div", { class: "panel" });
      container.append(panelNode);
      return new Panel(this, panel, panelNode);
    });
    this.makeLegend(lines);
    this.makeTools();
  }

  fullY() {
    const { scale, zero } = this.spec.y;
    const panels = this.spec.grid.flat();
    const lines = panels.flatMap((panel) => panel.lines);
    const levels = panels.flatMap((panel) => [panel.ceiling, ...panel.roofs.flatMap((roof) => roof.y)]);
    const values = [...lines.flatMap((line) => [...line.y, ...line.high]), ...levels].filter((value) => value !== null);
    if (scale === "linear" && zero) return [0, Math.max(1e-9, ...values) * 1.08];
    const ends = [...values, ...lines.flatMap((line) => line.low)].filter((value) => value !== null);
    const [low, high] = padded(scale, scale === "linear" ? ends : ends.filter((value) => value > 0));
    const digit = 10 ** Math.floor(Math.log10(low));
    return [scale === "linear" ? low : digit * Math.floor(low / digit), high];
  }

  build() {
    const width = document.documentElement.dataset.theme === "light" ? PRINTED_PX : null;
    for (const panel of this.panels) panel.build(width ?? Math.max(280, panel.node.clientWidth));
    this.built = true;
  }

  makeLegend(lines) {
    const kinds = new Map(lines.map((line) => [line.label, line]));
    this.node.querySelector(".legend").append(...[...kinds].map(([label, line]) => {
      const button = el("button", { type: "button", "aria-pressed": "true" }, keyOf(line), label);
      button.addEventListener("click", () => this.toggle(label, button));
      return button;
    }), ...this.levelKeys());
  }

  levelKeys() {
    const key = (label, stroke, ink) => el("span", { class: "key" }, strokeKey(stroke, ink, 1.2), label);
    const ceiling = this.spec.grid.flat().some((panel) => panel.ceiling !== null);
    return [
      ...(ceiling ? [key("ceiling", CEILING_STROKE, "var(--faint)")] : []),
      ...this.roofs.map((label, number) => key(label, ROOF_STROKES[number], "var(--text)")),
    ];
  }

  toggle(label, button) {
    const show = this.hidden.delete(label);
    if (!show) this.hidden.add(label);
    button.setAttribute("aria-pressed", String(show));
    for (const { plot, panel } of this.panels) {
      plot?.batch(() => panel.lines.forEach((line, number) => {
        if (line.label !== label) return;
        for (let part = 1; part <= PER_LINE; part += 1) plot.setSeries(PER_LINE * number + part, { show });
      }));
    }
  }

  makeTools() {
    const zoom = (factor, shift) => () => this.panels.forEach((panel) => panel.zoomBy(factor, shift));
    const reset = () => this.panels.forEach((panel) => panel.zoomTo(null));
    const tools = [
      ["Zoom in", zoom(0.5, 0)],
      ["Zoom out", zoom(2, 0)],
      ["Left", zoom(1, -0.25)],
      ["Right", zoom(1, 0.25)],
      ["Reset", reset],
      ["Save points", () => save(`${this.spec.stem}.csv`, this.csv())],
    ];
    this.node.querySelector(".tools").append(...[
      ...tools.map(([label, act]) => el("button", { type: "button", onclick: act }, label)),
      this.spec.y.label === "GB/s" ? this.makeLogSwitch() : null,
      el("span", { class: "small" }, "Drag in a chart to zoom, double-click to reset, click a point for its cell."),
    ].filter(Boolean));
  }

  makeLogSwitch() {
    const button = el("button", { type: "button", "aria-pressed": "false" }, "Logarithmic GB/s");
    button.addEventListener("click", () => {
      const log = this.spec.y.scale === "linear";
      this.spec.y.scale = log ? "log10" : "linear";
      this.full.y = this.fullY();
      button.setAttribute("aria-pressed", String(log));
      for (const panel of this.panels) panel.view = null;
      this.build();
    });
    return button;
  }

  csv() {
    const { x, y, band } = this.spec;
    const rows = [["panel", "run", "line", x.label, y.label, `${band}: lower`, `${band}: upper`, "cell"]];
    for (const panel of this.spec.grid.flat()) {
      for (const line of panel.lines) {
        line.x.forEach((value, at) => rows.push([
          panel.title, line.run, line.label, x.names[value] ?? value, line.y[at], line.low[at], line.high[at], line.cell_ids[at],
        ]));
      }
    }
    return rows.map((row) => row.map((text) => `"${String(text ?? "").replace(/"/g, '""')}"`).join(",")).join("\n");
  }

  // Shows what the pointer is at, or nothing.
  point(panel, near) {
    const tip = document.getElementById("tip");
    tip.hidden = !near;
    if (!near) return;
    const { line, number } = near;
    const { x, y, band } = this.spec;
    const at = `${x.label} ${shown(x, line.x[number])}: ${shown(y, line.y[number])} ${y.label}`;
    const [low, high] = [line.low[number], line.high[number]];
    const between = low < high ? [el("br"), `${band} ${shown(y, low)} to ${shown(y, high)}`] : [];
    tip.replaceChildren(el("strong", {}, line.label), el("br"), at, ...between);
    const box = panel.plot.over.getBoundingClientRect();
    const { left, top } = panel.plot.cursor;
    tip.style.left = `${Math.min(box.left + left + 14, innerWidth - tip.offsetWidth - 8) + scrollX}px`;
    tip.style.top = `${box.top + top + 14 + scrollY}px`;
  }

  choose(near) {
    if (near?.line.cell_ids[near.number]) this.open(near.line.run, near.line.cell_ids[near.number]);
  }
}

function padded(scale, values) {
  const low = forward(scale, Math.min(...values));
  const high = forward(scale, Math.max(...values));
  const room = 0.04 * (high - low) || 0.5;
  return [backward(scale, low - room), backward(scale, high + room)];
}

function keyOf(line) {
  const path = new Path2DText();
  drawMarker(path, line, 20, 7, line.wide ? 5 : 4);
  const ink = line.colour === "#000000" ? "currentColor" : line.colour;
  const key = strokeKey(strokeOf(line), ink, line.wide ? 5 : 2);
  key.append(drawn("path", { d: path.text, stroke: ink, "stroke-width": 1.2, fill: isHollow(line) ? "var(--page)" : ink }));
  return key;
}

function strokeKey(stroke, ink, width) {
  return drawn("svg", { width: 40, height: 14, "aria-hidden": "true" },
    drawn("line", { x1: 0, x2: 40, y1: 7, y2: 7, stroke: ink, "stroke-width": width, "stroke-dasharray": stroke.join(" ") || "none" }));
}

// Path2D's calls as the text of an SVG path, so that a marker is drawn the same in a chart and in its legend.
class Path2DText {
  text = "";
  moveTo(x, y) { this.text += `M${x} ${y}`; }
  lineTo(x, y) { this.text += `L${x} ${y}`; }
  rect(x, y, w, h) { this.text += `M${x} ${y}h${w}v${h}h${-w}Z`; }
  arc(_x, _y, r) { this.text += `a${r} ${r} 0 1 0 ${-2 * r} 0a${r} ${r} 0 1 0 ${2 * r} 0`; }
  closePath() { this.text += "Z"; }
}
