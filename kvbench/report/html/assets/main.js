// Puts the parts together once the page is there.

function start() {
  document.querySelectorAll(".scriptless").forEach((node) => node.remove());
  const runs = new Runs();
  const cells = new CellPanel(runs);
  const open = (label, id) => cells.open(label, id);
  const { inks, charts: specs } = JSON.parse(document.getElementById("charts").textContent);
  const charts = specs.map((spec) => {
    for (const { lines } of spec.grid.flat()) {
      lines.forEach((line) => Object.assign(line, inks[line.backend]));
      lines.sort((a, b) => b.wide - a.wide);  // the wide ones are drawn first
    }
    const node = [...document.querySelectorAll("figure[data-stem]")].find((figure_) => figure_.dataset.stem === spec.stem);
    return new LineChart(spec, node, open);
  });
  const all = () => charts.forEach((chart) => chart.build());
  const built = () => charts.filter((chart) => chart.built).forEach((chart) => chart.build());

  // a chart is drawn when it comes near
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((entry_) => entry_.isIntersecting)) {
      near.unobserve(entry.target);
      charts.find((chart) => chart.node === entry.target).build();
    }
  }, { rootMargin: "800px" });
  charts.forEach((chart) => near.observe(chart.node));

  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    built();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", built);
  addEventListener("beforeprint", () => { document.documentElement.dataset.theme = "light"; all(); });
  addEventListener("afterprint", () => { delete document.documentElement.dataset.theme; built(); });

  new LookUp(runs, document.getElementById("look-up"), open);
  watchTables(document);
  document.documentElement.dataset.ready = "yes";
}

start();
