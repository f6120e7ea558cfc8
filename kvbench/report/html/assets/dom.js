// Small tools. Whatever comes from a run gets onto the page as text, by these functions alone.

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function drawn(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// Black is the ink of a backend on paper; on a dark page it is white.
function inkOn(page, ink) {
  return ink === "#000000" ? page : ink;
}

function figure(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size === 0 || size >= 100) return value.toFixed(0);
  return value.toFixed(Math.min(6, 2 - Math.floor(Math.log10(size))));
}

function percent(share) {
  return `${(100 * share).toFixed(0)}%`;
}

function count(value) {
  return value.toFixed(0).replace(/\B(?=(\d{3})+$)/g, "\u00a0");
}

function size(bytes) {
  for (const [unit, factor] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (bytes >= factor && bytes % factor === 0) return `${bytes / factor}\u00a0${unit}`;
  }
  return bytes < 1024 ? `${bytes}\u00a0B` : `${Number((bytes / 1024).toPrecision(4))}\u00a0KiB`;
}

const SHOW = { bytes: size, count, figure };

// A value of an axis in words.
function shown(axis, value) {
  return axis.unit === "name" ? axis.names[value] : SHOW[axis.unit](value);
}

// To the clipboard; where that is refused the text is selected, for Ctrl+C.
async function copyText(source, button) {
  try {
    await navigator.clipboard.writeText(source.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(source);
    button.textContent = "Selected: press Ctrl+C";
  }
}

// Marks the tables below a node that are wider than their place, so that they say that they scroll.
const SCROLLING = new ResizeObserver((entries) => {
  for (const { target } of entries) target.toggleAttribute("data-scrolls", target.scrollWidth > target.clientWidth + 1);
});

function watchTables(node) {
  for (const table of node.querySelectorAll(".table")) {
    SCROLLING.observe(table);
    table.toggleAttribute("data-scrolls", table.scrollWidth > table.clientWidth + 1);
  }
}

function save(name, text) {
  const link = el("a", { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
}
