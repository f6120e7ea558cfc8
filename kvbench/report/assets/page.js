// Sorts tables and looks cells up. All else of the page works without scripts.

const NO_BREAK = /\u00a0/g;
const UNITS = { B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30 };

// A number that a cell begins with, in bytes if it is a size; null where it is text.
function numberOf(text) {
  const match = /^[=?×~\s]*([+-]?\d+(?:\.\d+)?)\s*([KMG]?i?B\b)?/.exec(text.replace(/(\d)\u00a0(?=\d{3})/g, "$1").replace(NO_BREAK, " "));
  return match ? Number(match[1]) * (UNITS[match[2]] ?? 1) : null;
}

function compare(a, b) {
  const [one, other] = [numberOf(a), numberOf(b)];
  if (one !== null && other !== null) return one - other;
  if (one !== null || other !== null) return one === null ? 1 : -1;
  return a < b ? -1 : a > b ? 1 : 0;
}

function sort(head) {
  const table = head.closest("table");
  const body = table.tBodies[0];
  const column = head.cellIndex;
  const down = head.ariaSort === "ascending";
  for (const other of table.tHead.rows[0].cells) other.ariaSort = null;
  head.ariaSort = down ? "descending" : "ascending";
  const rows = [...body.rows].map((row) => [row.cells[column]?.textContent ?? "", row]);
  rows.sort(([a], [b]) => (down ? compare(b, a) : compare(a, b)));
  body.append(...rows.map(([, row]) => row));
}

function makeSortable(table) {
  for (const head of table.tHead?.rows[0].cells ?? []) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(head));
    head.append(button);
  }
}

// What is searched in a row: its words, "16 KiB" and "10 000" as one word.
function wordsOf(row) {
  return [...row.cells].flatMap((cell) => cell.textContent.replace(NO_BREAK, "").toLowerCase().split(/\s+/));
}

function makeSearch(field, table) {
  const input = document.createElement("input");
  input.type = "search";
  input.placeholder = "batched h2d 16KiB 10000";
  input.setAttribute("aria-label", "Search cells");
  const found = document.createElement("output");
  const rows = [...table.tBodies[0].rows];
  let words = null;
  input.addEventListener("input", () => {
    words ??= rows.map(wordsOf);
    const whole = input.value.toLowerCase().replace(/(\d)\s+(?=[kmg]?i?b(\s|$))/g, "$1");
    const asked = whole.split(/\s+/).filter(Boolean);
    // a number is meant as it stands, anything else may be the beginning of a word
    const fits = (word, said) => (/^[\d.]+$/.test(word) ? said === word : said.startsWith(word));
    let shown = 0;
    rows.forEach((row, number) => {
      row.hidden = !asked.every((word) => words[number].some((said) => fits(word, said)));
      shown += row.hidden ? 0 : 1;
    });
    table.closest("details").open = true;
    found.textContent = ` ${shown} of ${rows.length} cells`;
  });
  field.append(input, found);
}

document.querySelectorAll("table").forEach(makeSortable);
const cells = document.querySelector("#all-cells");
if (cells) makeSearch(document.querySelector("#search"), cells);
document.documentElement.dataset.ready = "yes";
