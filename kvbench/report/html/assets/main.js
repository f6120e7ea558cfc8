// Puts the parts together once the page is there.

async function start() {
  document.querySelectorAll(".scriptless").forEach((node) => node.remove());
  let cells = null;
  const open = (label, id) => cells?.open(label, id);
  const charts = JSON.parse(document.getElementById("charts").textContent).map((spec) => {
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

  const place = document.getElementById("look-up");
  try {
    const runs = await Runs.read();
    cells = new CellPanel(runs);
    new LookUp(runs, place, open);
  } catch (error) {
    place.append(el("p", {}, `The cells cannot be unpacked in this browser (${error.message}); they are in summary.csv of each run.`));
  }
  document.documentElement.dataset.ready = "yes";
}

start();
