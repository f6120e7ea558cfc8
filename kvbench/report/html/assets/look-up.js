// Every cell of every run: searched by words, narrowed by axis, sorted by column; one opens its panel.

const PAGE_ROWS = 100;
const MAIN_AXES = ["backend", "direction", "stream_state", "blocks", "block_size"];
const NUMBER_KEYS = {
  blocks: (run, row) => Number(run.axes.blocks[row]),
  block_size: (run, row) => run.counts.block_bytes[row],
  sms: (run, row) => Number(run.axes.sms[row] ?? -1),
};

class LookUp {
  constructor(runs, node, open) {
    this.open = open;
    this.several = runs.list.length > 1;
    this.cells = runs.list.flatMap((run) => run.words.cell_id.map((id, row) => ({ run, row, id, words: wordsOf(run, row) })));
    this.columns = this.makeColumns(runs.list);
    this.filters = new Map();
    this.rows = PAGE_ROWS;
    this.sorting = null;
    this.make(node);
    this.show();
  }

  makeColumns(runs) {
    const names = Object.keys(runs[0]?.axes ?? {});
    const values = (name) => new Set(runs.flatMap((run) => run.axes[name]).filter((value) => value !== null));
    const others = names.filter((name) => !MAIN_AXES.includes(name) && values(name).size > 1);
    const axis = (name) => ({
      name,
      filter: true,
      text: ({ run, row }) => sized(run.axes[name][row] ?? ""),
      key: ({ run, row }) => (NUMBER_KEYS[name] ? NUMBER_KEYS[name](run, row) : run.axes[name][row] ?? ""),
    });
    const number = (name, head) => ({
      name: head,
      number: true,
      key: ({ run, row }) => figureOf(run, row, name) ?? -1,
      text: ({ run, row }) => figure(figureOf(run, row, name)),
    });
    return [
      number("gbps", "GB/s"),
      { name: "share", number: true, key: share, text: (cell) => (share(cell) < 0 ? "–" : percent(share(cell))) },
      { name: "path", key: ({ run, row }) => run.words.path[row] ?? "" },
      number("swap_us_median", "swap_us"),
      { name: "status", filter: true, key: ({ run, row }) => run.words.status[row] },
      ...(this.several ? [{ name: "run", key: ({ run }) => run.label, filter: true }] : []),
      ...[...MAIN_AXES.filter((name) => names.includes(name)), ...others].map(axis),
      { name: "cell id", key: ({ id }) => id },
    ];
  }

  make(node) {
    this.search = el("input", { type: "search", id: "search", placeholder: "batched h2d 16KiB blocks=10000", autocomplete: "off" });
    this.search.addEventListener("input", () => this.again());
    const filters = this.columns.filter((column) => column.filter).map((column) => this.makeFilter(column)).filter(Boolean);
    this.said = el("p", { role: "status", id: "found" });
    this.body = el("tbody", {});
    const heads = this.columns.map((column) => {
      const head = el("th", { scope: "col", class: column.number ? "right" : null });
      head.append(el("button", { type: "button", onclick: () => this.sort(column, head) }, column.name));
      return head;
    });
    this.heads = heads;
    this.more = el("button", { type: "button", onclick: () => { this.rows *= 4; this.show(); } }, "Show more");
    node.append(
      el("p", {}, el("label", { for: "search" }, "Search "), this.search),
      el("div", { class: "filters" }, ...filters),
      this.said,
      el("div", { class: "table", role: "region", tabindex: "0", "aria-label": "Cells" },
        el("table", { class: "cells" }, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "cell"), ...heads)), this.body)),
      this.more,
    );
  }

  makeFilter(column) {
    const texts = new Map(this.cells.map((cell) => [column.key(cell), textOf(column, cell)]));
    if (texts.size < 2) return null;
    const sorted = [...texts].sort(([a], [b]) => compare(a, b));
    const choice = el("select", { "data-axis": column.name }, el("option", { value: "" }, "all"));
    choice.append(...sorted.map(([, text], number) => el("option", { value: String(number + 1) }, text === "" ? "none" : text)));
    choice.addEventListener("change", () => {
      if (choice.value) this.filters.set(column, sorted[Number(choice.value) - 1][0]);
      else this.filters.delete(column);
      this.again();
    });
    return el("label", {}, `${column.name} `, choice);
  }

  again() {
    this.rows = PAGE_ROWS;
    this.show();
  }

  sort(column, head) {
    const down = this.sorting?.column === column && !this.sorting.down;
    this.sorting = { column, down };
    for (const other of this.heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    this.show();
  }

  matches() {
    const whole = this.search.value.toLowerCase().replace(/(\d)\s+(?=[kmg]?i?b(\s|$))/g, "$1");  // "16 KiB" is one word
    const asked = whole.split(/\s+/).filter(Boolean);
    const cells = this.cells.filter((cell) =>
      asked.every((word) => cell.words.some((said) => fits(word, said))) &&
      [...this.filters].every(([column, key]) => column.key(cell) === key));
    if (!this.sorting) return cells;
    const { column, down } = this.sorting;
    return cells.sort((a, b) => (down ? -1 : 1) * compare(column.key(a), column.key(b)));
  }

  show() {
    const cells = this.matches();
    this.said.textContent = `${count(cells.length)} of ${count(this.cells.length)} cells`;
    this.body.replaceChildren(...cells.slice(0, this.rows).map((cell) => this.line(cell)));
    this.more.hidden = cells.length <= this.rows;
  }

  line(cell) {
    const open = () => this.open(cell.run.label, cell.id);
    const attributes = { type: "button", class: "open", "aria-label": `Open ${cellName(cell.run, cell.row)}` };
    return el("tr", { onclick: open, "data-cell": cell.id }, el("td", {}, el("button", attributes, shortName(cell))), ...this.columns.map((column) =>
      el("td", { class: column.number ? "right" : null }, textOf(column, cell))));
  }
}

function shortName({ run, row }) {
  const axis = (name) => run.axes[name][row];
  const blocks = `${count(Number(axis("blocks")))} \u00d7 ${size(run.counts.block_bytes[row])}`;
  return `${axis("backend")} ${axis("direction")} ${blocks}, ${axis("stream_state")}${smsOf(run, row)}`;
}

// "16KiB" as people read it; other text stays as it is.
function sized(text) {
  const match = /^(\d+)([KMG]?i?B)$/.exec(text);
  const factor = match && { B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30 }[match[2]];
  return factor ? size(Number(match[1]) * factor) : text;
}

function textOf(column, cell) {
  return String(column.text ? column.text(cell) : column.key(cell));
}

function share({ run, row }) {
  return figureOf(run, row, "ceiling_share") ?? -1;
}

function compare(a, b) {
  return typeof a === "number" ? a - b : a < b ? -1 : a > b ? 1 : 0;
}

// axis=value is meant as it stands; anything else may be the beginning of a word.
function fits(asked, said) {
  return asked.includes("=") ? said === asked : !said.includes("=") && said.startsWith(asked);
}

// What a search looks at: the values of the axes alone and as axis=value, the id, the status, the words of the path.
function wordsOf(run, row) {
  const axes = Object.entries(run.axes).filter(([, values]) => values[row] !== null)
    .flatMap(([name, values]) => [values[row], `${name}=${values[row]}`]);
  const { cell_id, status, path, reason, warnings } = run.words;
  const texts = [run.label, cell_id[row], status[row], path[row], reason[row], warnings[row]];
  return [...axes, ...texts.flatMap((text) => (text ?? "").split(/\s+/))].filter(Boolean).map((word) => word.toLowerCase());
}
