// The runs of this report: words and figures at once, the raw samples of a run when a cell of it is first looked at.

class Runs {
  constructor() {
    const samples = [...document.querySelectorAll("script.samples")];
    this.list = [...document.querySelectorAll("script.run")].map((node, number) => {
      const run = JSON.parse(node.textContent);
      run.sampleNode = samples[number];
      run.rowOf = new Map(run.words.cell_id.map((id, row) => [id, row]));
      return run;
    });
    this.byLabel = new Map(this.list.map((run) => [run.label, run]));
  }

  find(label, id) {
    const run = this.byLabel.get(label);
    const row = run && run.rowOf.get(id);
    return row === undefined ? null : { run, row };
  }
}

function figureOf(run, row, name) {
  return run.figures[name][row];
}

// Returns the raw samples of a cell, a visit after another: {round, columns: {name: [numbers]}}.
function samplesOf(run, row) {
  run.samples ??= JSON.parse(run.sampleNode.textContent);
  const { columns, cells } = run.samples;
  return (cells[run.words.cell_id[row]] ?? []).map(([round, length, ...values]) => {
    // one number stands for a list of equal ones
    const lists = values.map((value) => (Array.isArray(value) ? value : Array(length).fill(value)));
    return { round, columns: Object.fromEntries(columns.map((name, column) => [name, lists[column]])) };
  });
}
