// Reads what packing.py wrote: base64 text of deflated bytes.

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function unpackJson(text) {
  return JSON.parse(new TextDecoder().decode(await inflate(text)));
}

// Returns a function (column, row) -> number or null, of a table with so many rows: two planes with the low and the
// high byte of four significant digits, then one with the power of ten.
async function unpackNumbers(text, rows) {
  const bytes = await inflate(text);
  const total = bytes.length / 3;
  const powers = new Int8Array(bytes.buffer, 2 * total, total);
  return (column, row) => {
    const at = column * rows + row;
    const digits = ((bytes[at] | (bytes[total + at] << 8)) << 16) >> 16;
    return powers[at] === 127 ? null : Number(`${digits}e${powers[at]}`);
  };
}

// The runs of this report: words and figures at once, the raw samples of a run when a cell of it is first looked at.
class Runs {
  static async read() {
    const parts = { cells: [], figures: [], samples: [] };
    for (const node of document.querySelectorAll("script.run")) parts[node.dataset.part].push(node.textContent);
    const runs = await Promise.all(parts.cells.map(async (text, number) => {
      const run = await unpackJson(text);
      run.rows = run.words.cell_id.length;
      run.number = await unpackNumbers(parts.figures[number], run.rows);
      run.packedSamples = parts.samples[number];
      run.rowOf = new Map(run.words.cell_id.map((id, row) => [id, row]));
      return run;
    }));
    return new Runs(runs);
  }

  constructor(runs) {
    this.list = runs;
    this.byLabel = new Map(runs.map((run) => [run.label, run]));
  }

  find(label, id) {
    const run = this.byLabel.get(label);
    const row = run && run.rowOf.get(id);
    return row === undefined ? null : { run, row };
  }
}

function figureOf(run, row, name) {
  return run.number(run.figures.indexOf(name), row);
}

// Returns the raw samples of a cell, a visit after another: {round, columns: {name: [numbers]}}.
async function samplesOf(run, row) {
  const total = run.visits.reduce((sum, [, , samples]) => sum + samples, 0);
  run.samples ??= await unpackNumbers(run.packedSamples, total);
  const found = [];
  let first = 0;
  for (const [owner, round, samples] of run.visits) {
    if (owner === row) {
      const at = (column) => Array.from({ length: samples }, (_, number) => run.samples(column, first + number));
      found.push({ round, columns: Object.fromEntries(run.sample_columns.map((name, column) => [name, at(column)])) });
    }
    first += samples;
  }
  return found;
}
