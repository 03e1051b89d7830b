// Films: reading them line by line, and moving through them edit by edit.
"use strict";
const SIDE = 64; // cells along the side of a tile
async function positions(text) {
  if (!text) return new Float64Array(0);
  const letters = atob(text),
    packed = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) packed[i] = letters.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const out = new Float64Array(bytes.length); // a position has at least one byte
  let count = 0,
    at = 0,
    value = 0,
    scale = 1;
  for (const byte of bytes) {
    value += (byte & 127) * scale;
    if (byte & 128) scale *= 128;
    else {
      at += value;
      out[count++] = at;
      value = 0;
      scale = 1;
    }
  }
  return out.slice(0, count);
}

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
    this.rest = "";
    this.layers = [];
    this.edits = [];
    this.metrics = [];
    this.columns = [];
    this.now = 0;
    this.problem = "";
    this.decoder = new TextDecoder();
  }
  async add(text) {
    const lines = (this.rest + text).split("\n");
    this.rest = lines.pop(); // perhaps half of a line that is being written
    for (const line of lines) {
      if (!line) continue;
      let event;
      try {
        event = JSON.parse(line);
      } catch {
        this.problem = "a line of this film cannot be read and is left out";
        continue;
      }
      await this.event(event);
    }
  }
  async event(event) {
    if (event.kind === "start") {
      if (event.format !== "rewire-film-1") {
        this.problem = "this film is of another version";
        return;
      }
      this.about = event;
      const active = await Promise.all(event.layers.map((layer) => positions(layer.active)));
      this.layers = event.layers.map((layer, i) => new Layer(layer, active[i]));
      this.note(event.step);
    } else if (event.kind === "rewiring") {
      const decode = async (layer) => ({ drop: await positions(layer.drop), grow: await positions(layer.grow) });
      const layers = await Promise.all(event.layers.map(decode));
      const atEnd = this.now === this.edits.length;
      const kept = this.now;
      this.seek(this.edits.length);
      this.edits.push({ step: event.step, layers, undo: null });
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
  describe() {
    if (!this.columns.length) return this.problem || "no film yet";
    const column = this.columns[this.now],
      before = this.columns[this.now - 1];
    if (!before)
      return `${this.title}: start, ${column.nnz.reduce((a, b) => a + b, 0).toLocaleString()} weights in ${this.layers.length} layers`;
    const change = this.layers.map((l, i) => [l.name, column.nnz[i] - before.nnz[i]]).sort((a, b) => a[1] - b[1]);
    const [low, high] = [change[0], change[change.length - 1]];
    const flow =
      high[1] > 0
        ? `; ${low[0]} lost ${(-low[1]).toLocaleString()}, ${high[0]} gained ${high[1].toLocaleString()}`
        : "; no layer gained";
    return `${this.title}: step ${column.step.toLocaleString()}, ${column.moved.toLocaleString()} weights moved${flow}`;
  }
}
