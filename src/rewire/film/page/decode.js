// The bytes of a film: lines of JSON, some followed by positions in binary. src/rewire/film/format.py describes them.
"use strict";

class BitReader {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0; // in bits
  }
  window() {
    // the next 25 bits or more, at the top of 32
    const i = this.at >> 3,
      b = this.bytes;
    return (((b[i] << 24) | (b[i + 1] << 16) | (b[i + 2] << 8) | b[i + 3]) << (this.at & 7)) >>> 0;
  }
  zeros() {
    // how many zeros precede the next one, which is passed over too
    let count = 0;
    for (;;) {
      const here = Math.clz32(this.window());
      if (here < 24) {
        this.at += here + 1;
        return count + here;
      }
      if (this.at >> 3 > this.bytes.length) throw new Error("the bits end too early");
      this.at += 24;
      count += 24;
    }
  }
  take(count) {
    let value = 0;
    for (; count > 24; count -= 24) {
      value = value * 16777216 + (this.window() >>> 8);
      this.at += 24;
    }
    if (!count) return value;
    const part = this.window() >>> (32 - count);
    this.at += count;
    return value * 2 ** count + part;
  }
  number() {
    const length = this.zeros();
    return 2 ** length + this.take(length) - 1;
  }
  subset(n) {
    const count = this.number();
    if (count > n) throw new Error(`a subset of ${n} numbers cannot have ${count}`);
    const rest = 2 * count > n,
      members = new Int32Array(rest ? n - count : count);
    if (members.length) {
      const shift = this.number(),
        scale = 2 ** shift;
      for (let i = 0; i < members.length; i++) members[i] = this.zeros();
      for (let i = 0, last = -1; i < members.length; i++) {
        last += members[i] * scale + this.take(shift) + 1;
        members[i] = last;
      }
    }
    return rest ? missing(members, n) : members;
  }
}
function missing(members, n) {
  const out = new Int32Array(n - members.length);
  for (let value = 0, i = 0, j = 0; value < n; value++)
    if (i < members.length && members[i] === value) i++;
    else out[j++] = value;
  return out;
}
function merged(a, b) {
  const out = new Int32Array(a.length + b.length);
  for (let i = 0, j = 0, k = 0; k < out.length; k++) out[k] = j >= b.length || a[i] < b[j] ? a[i++] : b[j++];
  return out;
}
function without(list, ranks) {
  const out = new Int32Array(list.length - ranks.length);
  for (let i = 0, j = 0, k = 0; i < list.length; i++)
    if (j < ranks.length && ranks[j] === i) j++;
    else out[k++] = list[i];
  return out;
}

class LayerState {
  // the active positions of a layer: those that the last rewiring grew, and the older ones
  constructor(size, older) {
    this.size = size;
    this.older = older;
    this.newborn = new Int32Array(0);
  }
  edit(reader) {
    const young = reader.subset(this.newborn.length),
      old = reader.subset(this.older.length);
    const drop = merged(
      young.map((i) => this.newborn[i]),
      old.map((i) => this.older[i]),
    );
    this.older = merged(without(this.older, old), without(this.newborn, young));
    const grow = reader.subset(this.size - this.older.length);
    for (let i = 0, before = 0; i < grow.length; i++) {
      // the rank among inactive positions becomes a position
      while (before < this.older.length && this.older[before] <= grow[i] + before) before++;
      grow[i] += before;
    }
    this.newborn = grow;
    return { drop, grow };
  }
}

class Decoder {
  // Chunks of a film as they arrive; events() yields those that are complete.
  constructor() {
    this.rest = new Uint8Array(0);
    this.layers = [];
  }
  push(bytes) {
    const joined = new Uint8Array(this.rest.length + bytes.length);
    joined.set(this.rest);
    joined.set(bytes, this.rest.length);
    this.rest = joined;
  }
  async *events() {
    for (;;) {
      const end = this.rest.indexOf(10);
      if (end < 0) return; // perhaps half of a line that is being written
      const event = JSON.parse(new TextDecoder().decode(this.rest.subarray(0, end)));
      const after = end + 1 + (event.bytes || 0),
        next = after + ("bytes" in event ? 1 : 0);
      if (next > this.rest.length) return;
      const content = this.rest.subarray(end + 1, after);
      yield await this.decode(event, content);
      this.rest = this.rest.subarray(next);
    }
  }
  async decode(event, content) {
    if (event.kind === "start") {
      if (!["rewire-film-1", "rewire-film-2"].includes(event.format)) throw new Error("it is of another version");
      this.first = event.format === "rewire-film-1";
    }
    if (!event.layers && event.kind !== "rewiring") return event;
    if (this.first) {
      const lists = async (layer) => {
        const out = { ...layer };
        for (const key of event.kind === "start" ? ["active"] : ["drop", "grow"]) out[key] = await base64List(layer[key]);
        return out;
      };
      return { ...event, layers: await Promise.all(event.layers.map(lists)) };
    }
    const reader = new BitReader(content);
    if (event.kind === "start") {
      const sizes = event.layers.map((layer) => layer.shape.reduce((a, b) => a * b, 1));
      this.layers = sizes.map((size) => new LayerState(size, reader.subset(size)));
      return { ...event, layers: event.layers.map((layer, i) => ({ ...layer, active: this.layers[i].older })) };
    }
    return { ...event, layers: this.layers.map((layer) => layer.edit(reader)) };
  }
}

function fromBase64(text) {
  const letters = atob(text),
    bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return bytes;
}
async function base64List(text) {
  // a list of positions of the first format: differences as LEB128 numbers, deflated
  if (!text) return new Int32Array(0);
  const stream = new Blob([fromBase64(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const out = new Int32Array(bytes.length); // a position has at least one byte
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
