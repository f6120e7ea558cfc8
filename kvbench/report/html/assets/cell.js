// The panel of one cell: its figures, its samples, what really ran, and the command that measures it again.

const TIMES = ["swap_us", "wall_us", "gpu_us", "caller_us", "cpu_us"];

class CellPanel {
  constructor(runs) {
    this.runs = runs;
    this.dialog = document.getElementById("cell");
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close();  // beside the panel
    });
  }

  open(label, id) {
    const cell = this.runs.find(label, id);
    if (!cell) return;
    const { run, row } = cell;
    const close = el("button", { type: "button", class: "close", onclick: () => this.dialog.close() }, "Close");
    const visits = samplesOf(run, row);
    const measured = run.words.status[row] === "ok";
    this.dialog.replaceChildren(el("div", {},
      el("header", {}, el("h2", { id: "cell-title" }, cellName(run, row)), close),
      facts(run, row),
      measured ? times(run, row) : null,
      command(run, row),
      el("h3", {}, "Raw samples"),
      ...(visits.length ? raw(run, row, visits) : ["This cell has none."]),
    ));
    if (!this.dialog.open) this.dialog.showModal();
    this.dialog.scrollTop = 0;
    watchTables(this.dialog);
  }
}

function cellName(run, row) {
  const axis = (name) => run.axes[name][row];
  return `${axis("backend")} ${axis("direction")}, ${count(Number(axis("blocks")))} blocks of ` +
    `${size(run.counts.block_bytes[row])}, ${axis("stream_state")} stream${smsOf(run, row)}`;
}

function smsOf(run, row) {
  const sms = run.axes.sms[row];
  return sms ? `, ${sms} SM${sms === "1" ? "" : "s"}` : "";
}

function facts(run, row) {
  const word = (name) => run.words[name][row];
  const number = (name) => run.counts[name][row];
  const rate = (name) => figureOf(run, row, name);
  const share = (name) => (rate(name) === null ? null : percent(rate(name)));
  const others = Object.entries(run.axes)
    .filter(([name, values]) => values[row] !== null && !["backend", "direction", "blocks", "block_size", "stream_state"].includes(name))
    .map(([name, values]) => `${name} ${sized(values[row])}`);
  const speed = rate("gbps") === null ? null
    : `${figure(rate("gbps"))} (quartiles ${figure(rate("gbps_q1"))} to ${figure(rate("gbps_q3"))})`;
  const rows = [
    ["GB/s", speed],
    ["Share of the ceiling", share("ceiling_share")],
    ["Share of the roof", share("roof_share")],
    ["Effective path", word("path")],
    ["Status", word("status") === "ok" ? null : word("status")],
    ["Reason", word("reason")],
    ["Run", `${run.label}: ${run.title}`],
    ["Chosen by auto", word("chosen")],
    ["Other axes", others.join(", ") || null],
    ["Samples", number("samples") ? `${number("samples")} in ${number("rounds")} rounds, ${number("outliers")} marked as outliers` : null],
    ["Stopped by", word("stopped_by")],
    ["Stream in the requested state", share("state_held")],
    ["gpu_us is execution only", share("execution_only")],
    ["All queued swaps waiting", share("depth_held")],
    ["Bytes compared", number("verified_bytes") ? count(number("verified_bytes")) : null],
    ["Access order", word("order_note")],
    ["Warnings", word("warnings")],
    ["Cell id", word("cell_id")],
  ];
  return el("dl", {}, ...rows.filter(([, said]) => said !== null && said !== undefined)
    .flatMap(([name, said]) => [el("dt", {}, name), el("dd", {}, said)]));
}

function times(run, row) {
  const shown = (name, part) => el("td", { class: "right" }, figure(figureOf(run, row, `${name}_${part}`)));
  return el("div", { class: "table" }, el("table", {},
    el("thead", {}, el("tr", {}, ...["Time, us", "median", "lower quartile", "upper quartile"].map((head) => el("th", { scope: "col" }, head)))),
    el("tbody", {}, ...TIMES.map((name) => el("tr", {}, el("th", { scope: "row" }, name), ...["median", "q1", "q3"].map((part) => shown(name, part)))))));
}

function command(run, row) {
  const source = el("code", { class: "command" }, run.words.command[row] ?? "");
  const button = el("button", { type: "button", id: "copy" }, "Copy");
  button.addEventListener("click", () => copyText(source, button));
  return el("div", {}, el("h3", {}, "Command that measures it again"), el("p", { class: "copied" }, source, button));
}

function raw(run, row, visits) {
  const quartiles = (name) => ["q1", "median", "q3"].map((part) => figureOf(run, row, `${name}_${part}`));
  const picture = el("div", {});
  const show = (name) => picture.replaceChildren(strip(visits, name, quartiles(name)));
  const choice = el("select", { id: "time" }, ...TIMES.map((name) => el("option", { value: name }, name)));
  choice.addEventListener("change", () => show(choice.value));
  show(TIMES[0]);
  const numbers = el("details", {}, el("summary", {}, "The numbers (microseconds, four significant digits; the journal has all)"));
  numbers.addEventListener("toggle", () => {
    if (numbers.open && numbers.children.length === 1) numbers.append(numberTable(visits));
  });
  return [el("p", {}, el("label", { for: "time" }, "Time "), choice), picture, numbers];
}

function numberTable(visits) {
  const names = Object.keys(visits[0].columns);
  const rows = visits.flatMap((visit) => visit.columns[names[0]].map((_, sample) =>
    el("tr", {}, ...[visit.round, sample, ...names.map((name) => visit.columns[name][sample] ?? "–")].map((value) => el("td", { class: "right" }, String(value))))));
  return el("div", { class: "table" }, el("table", { class: "numbers" },
    el("thead", {}, el("tr", {}, ...["round", "sample", ...names].map((head) => el("th", { scope: "col" }, head)))),
    el("tbody", {}, ...rows)));
}
