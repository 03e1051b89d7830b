// Films: the state of every layer at a moment, and moving through the moments edit by edit.
const SIDE = 64; // cells along the side of a tile

class Layer {
  constructor(about, active) {
    this.name = about.name;
    this.shape = about.shape;
    this.rows = about.shape[0];
    this.width = about.shape.slice(1).reduce((a, b) => a * b, 1);
    this.taps = about.shape.slice(2).reduce((a, b) => a * b, 1);
    this.columns = this.width / this.taps;
    this.size = this.rows * this.width;
    this.born = new Int32Array(this.size).fill(-1); // the rewiring at which a weight was born; -1: inactive
    this.tried = new Uint8Array(this.size);
    this.fanIn = new Int32Array(this.rows);
    this.fanOut = new Int32Array(this.columns);
    this.nnz = 0;
    this.explored = 0;
    this.deadRows = this.rows;
    this.high = Math.min(this.rows, SIDE);
    this.wide = Math.min(this.columns, SIDE);
    this.counts = new Float64Array(this.high * this.wide);
    this.ages = new Float64Array(this.high * this.wide);
    for (const p of active) this.grow(p, 0);
  }
  cell(p) {
    const row = Math.floor(p / this.width),
      column = Math.floor((p % this.width) / this.taps);
    return Math.floor((row * this.high) / this.rows) * this.wide + Math.floor((column * this.wide) / this.columns);
  }
  grow(p, when) {
    const row = Math.floor(p / this.width),
      column = Math.floor((p % this.width) / this.taps),
      cell = this.cell(p);
    this.born[p] = when;
    this.nnz++;
    this.counts[cell]++;
    this.ages[cell] += when;
    if (!this.fanIn[row]++) this.deadRows--;
    this.fanOut[column]++;
    if (!this.tried[p]) {
      this.tried[p] = 1;
      this.explored++;
    }
  }
  drop(p) {
    const row = Math.floor(p / this.width),
      column = Math.floor((p % this.width) / this.taps),
      cell = this.cell(p);
    const when = this.born[p];
    this.ages[cell] -= when;
    this.born[p] = -1;
    this.nnz--;
    this.counts[cell]--;
    if (!--this.fanIn[row]) this.deadRows++;
    this.fanOut[column]--;
    return when;
  }
}

class Film {
  constructor(title, index) {
    this.title = title;
    this.index = index;
    this.reset();
  }
  reset() {
    this.bytes = 0;
    this.version = null; // of the file: a training that resumes replaces it
    this.decoder = new Decoder();
    this.about = null;
    this.layers = [];
    this.edits = [];
    this.metrics = [];
    this.columns = [];
    this.now = 0;
    this.problem = "";
  }
  async add(bytes, pause = async () => {}) {
    if (this.problem) return;
    this.decoder.push(bytes);
    let began = performance.now();
    try {
      for await (const event of this.decoder.events()) {
        this.event(event);
        if (performance.now() - began > 50) {
          await pause(); // so that the page shows something while a long film is read
          began = performance.now();
        }
      }
    } catch (error) {
      const last = this.columns.length ? `after step ${this.columns[this.columns.length - 1].step}` : "at its start";
      this.problem = `This film cannot be read ${last}, and what follows is left out: ${error.message}.`;
    }
  }
  event(event) {
    if (event.kind === "start") {
      this.about = event;
      this.layers = event.layers.map((layer) => new Layer(layer, layer.active));
      this.note(event.step);
    } else if (event.kind === "rewiring") {
      const kept = this.now,
        atEnd = kept === this.edits.length;
      this.seek(this.edits.length);
      this.edits.push({ step: event.step, layers: event.layers, undo: null });
      this.seek(this.edits.length);
      this.note(event.step);
      if (!atEnd) this.seek(kept);
    } else if (event.kind === "metrics") this.metrics.push(event);
  }
  note(step) {
    // what the river and the curves need of this moment; counted once, while the film is read forwards
    const edit = this.edits[this.edits.length - 1];
    this.columns.push({
      step,
      total: this.layers.reduce((sum, l) => sum + l.nnz, 0),
      nnz: this.layers.map((l) => l.nnz),
      dead: this.layers.reduce((sum, l) => sum + l.deadRows, 0),
      explored: this.layers.reduce((sum, l) => sum + l.explored, 0) / this.layers.reduce((sum, l) => sum + l.size, 0),
      moved: edit ? edit.layers.reduce((sum, l) => sum + l.grow.length, 0) : 0,
    });
  }
  seek(to) {
    // edits are applied one by one, forwards or backwards
    to = Math.max(0, Math.min(to, this.edits.length));
    while (this.now < to) {
      const edit = this.edits[this.now++],
        first = !edit.undo;
      if (first) edit.undo = edit.layers.map((l) => new Int32Array(l.drop.length));
      edit.layers.forEach((change, i) => {
        change.drop.forEach((p, j) => {
          edit.undo[i][j] = this.layers[i].drop(p);
        });
        for (const p of change.grow) this.layers[i].grow(p, this.now);
      });
    }
    while (this.now > to) {
      const edit = this.edits[--this.now];
      edit.layers.forEach((change, i) => {
        for (const p of change.grow) this.layers[i].drop(p);
        change.drop.forEach((p, j) => this.layers[i].grow(p, edit.undo[i][j]));
      });
    }
  }
  end() {
    // the last step that something is known of
    return Math.max(0, ...[this.columns, this.metrics].map((list) => (list.length ? list[list.length - 1].step : 0)));
  }
  at(step) {
    // the index of the last moment at or before a step
    let index = 0;
    while (index + 1 < this.columns.length && this.columns[index + 1].step <= step) index++;
    return index;
  }
  describe() {
    if (!this.columns.length) return `${this.title}: ${this.problem || "no film yet"}`;
    const column = this.columns[this.now],
      before = this.columns[this.now - 1],
      weights = (n) => `${count(n)} weight${n === 1 ? "" : "s"}`;
    if (!before) return `${this.title}: start, ${weights(column.total)} in ${this.layers.length} layers`;
    const change = this.layers.map((l, i) => [l.name, column.nnz[i] - before.nnz[i]]).sort((a, b) => a[1] - b[1]);
    const [low, high] = [change[0], change[change.length - 1]];
    const flow =
      high[1] > 0 && low[1] < 0
        ? `; layer ${low[0]} lost ${count(-low[1])}, layer ${high[0]} gained ${count(high[1])}`
        : "; no layer gained from another";
    return `${this.title}: step ${count(column.step)}, ${weights(column.moved)} moved${flow}`;
  }
}
