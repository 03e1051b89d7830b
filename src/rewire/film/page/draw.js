// Drawing: the river, the curves, the masks and one enlarged layer.
const $ = (id) => document.getElementById(id);
const styles = new Map(); // read once for each scheme: asking the browser forces it to lay out the page
const css = (name) => {
  if (!styles.has(name)) styles.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return styles.get(name);
};
const HUES = [210, 35, 160, 330, 265, 95, 185, 15, 235, 300, 60, 140];
function fit(canvas, height) {
  const ratio = devicePixelRatio || 1,
    width = canvas.clientWidth || 600;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = height + "px";
  }
  const c = canvas.getContext("2d");
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  c.clearRect(0, 0, width, height);
  return [c, width];
}
const scheme = matchMedia("(prefers-color-scheme: dark)");
const dark = () => scheme.matches;
const hue = (i, alpha) => `hsl(${HUES[i % HUES.length]} ${i % 24 < 12 ? 62 : 38}% ${dark() ? 58 : 46}% / ${alpha})`;

function flows(before, after) {
  // from each layer that lost to each that gained, in proportion to the gains
  const change = after.map((n, i) => n - before[i]);
  const gained = change.reduce((s, d) => s + Math.max(d, 0), 0),
    list = [];
  if (!gained) return list;
  change.forEach((lost, from) => {
    if (lost < 0)
      change.forEach((d, to) => {
        if (d > 0) list.push([from, to, (-lost * d) / gained]);
      });
  });
  return list;
}

// The whole river is drawn once, until there is a new rewiring, another size or another scheme; a frame only copies it.
const RIVER = 260; // its height
function river(canvas, film, end, head) {
  const [c, width] = fit(canvas, RIVER),
    ratio = devicePixelRatio || 1;
  if (!film.columns.length) return;
  const key = [film.columns.length, end, width, ratio, dark()].join();
  if (!canvas.drawn || canvas.drawn.key !== key) {
    const image = document.createElement("canvas");
    image.width = canvas.width;
    image.height = canvas.height;
    const context = image.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    drawRiver(context, width, film, end);
    canvas.drawn = { key, image };
  }
  const at = place(head, end, width),
    past = Math.round((at + 1) * ratio);
  c.setTransform(1, 0, 0, 1, 0, 0);
  const part = (from, to) =>
    to > from && c.drawImage(canvas.drawn.image, from, 0, to - from, canvas.height, from, 0, to - from, canvas.height);
  part(0, Math.min(past, canvas.width));
  c.globalAlpha = 0.3;
  part(past, canvas.width);
  c.globalAlpha = 1;
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  c.fillStyle = css("--ink");
  c.fillRect(at - 0.5, 0, 1, RIVER);
}
const place = (column, end, width) => (end ? 4 + ((width - 8) * column) / end : 4);

function drawRiver(c, width, film, end) {
  const columns = film.columns,
    most = Math.max(...columns.map((k) => k.nnz.reduce((a, b) => a + b, 0))) || 1,
    gap = Math.min(3, 60 / film.layers.length),
    room = RIVER - gap * (film.layers.length - 1),
    pillar = Math.min(6, Math.max(1, (width - 8) / (end + 1) / 3));
  const tops = columns.map((column) => {
    let y = 0;
    return column.nnz.map((n) => {
      const top = y;
      y += (n / most) * room + gap;
      return top;
    });
  });
  for (let t = 0; t < columns.length; t++) {
    const x = place(t, end, width);
    columns[t].nnz.forEach((n, i) => {
      c.fillStyle = hue(i, 0.95);
      c.fillRect(x - pillar / 2, tops[t][i], pillar, Math.max((n / most) * room, 0.6));
    });
    if (t + 1 === columns.length) break;
    const from = columns[t].nnz,
      to = columns[t + 1].nnz,
      left = x + pillar / 2,
      right = place(t + 1, end, width) - pillar / 2,
      mid = (left + right) / 2,
      out = tops[t].slice(),
      into = tops[t + 1].slice();
    const ribbon = (a, b, n, colour) => {
      const h = Math.max((n / most) * room, 0.3);
      c.fillStyle = colour;
      c.beginPath();
      c.moveTo(left, a);
      c.bezierCurveTo(mid, a, mid, b, right, b);
      c.lineTo(right, b + h);
      c.bezierCurveTo(mid, b + h, mid, a + h, left, a + h);
      c.fill();
      return (n / most) * room;
    };
    from.forEach((n, i) => {
      const h = ribbon(out[i], into[i], Math.min(n, to[i]), hue(i, 0.42));
      out[i] += h;
      into[i] += h;
    });
    for (const [a, b, n] of flows(from, to)) {
      const h = ribbon(out[a], into[b], n, hue(a, 0.8));
      out[a] += h;
      into[b] += h;
    }
  }
}

function curve(canvas, film, last, series) {
  const height = 84,
    [c, width] = fit(canvas, height),
    x = (step) => (last ? 4 + ((width - 8) * step) / last : 4);
  c.font = "12px system-ui";
  c.textBaseline = "top";
  let label = 4;
  for (const [name, points, colour, format] of series) {
    if (!points.length) continue;
    const values = points.map((p) => p[1]),
      low = Math.min(...values),
      high = Math.max(...values),
      span = high - low || 1;
    c.strokeStyle = css(colour);
    c.lineWidth = 1.6;
    c.beginPath();
    points.forEach(([step, v], i) => {
      const y = height - 8 - ((v - low) / span) * (height - 34);
      i ? c.lineTo(x(step), y) : c.moveTo(x(step), y);
    });
    c.stroke();
    const here = film.columns[film.now].step,
      now = points.filter((p) => p[0] <= here).pop() || points[0];
    const text = `${name} ${format(now[1])}`;
    c.fillStyle = css(colour);
    c.fillText(text, label, 2);
    label += c.measureText(text).width + 16;
  }
  c.fillStyle = css("--ink");
  c.fillRect(x(film.columns[film.now].step) - 0.5, 18, 1, height - 18);
}

function colour(name) {
  const n = parseInt(css(name).slice(1), 16); // every colour of the style has six digits
  return [n >> 16, (n >> 8) & 255, n & 255];
}

function mask(canvas, film, i) {
  const layer = film.layers[i],
    cells = layer.counts.length;
  if (canvas.width !== layer.wide || canvas.height !== layer.high) {
    canvas.width = layer.wide;
    canvas.height = layer.high;
  }
  const c = canvas.getContext("2d"),
    image = c.createImageData(layer.wide, layer.high),
    pixels = image.data,
    fresh = new Uint32Array(cells),
    gone = new Uint32Array(cells);
  const [born, dropped, ink, ground] = ["--born", "--dropped", "--ink", "--panel"].map(colour);
  if (film.now) {
    const edit = film.edits[film.now - 1].layers[i];
    for (const p of edit.grow) fresh[layer.cell(p)]++;
    for (const p of edit.drop) gone[layer.cell(p)]++;
  }
  let full = layer.size > cells ? 0 : 1;
  for (const n of layer.counts) if (n > full) full = n;
  full = full || 1;
  const many = Math.max(full * 0.25, 1);
  for (let k = 0; k < cells; k++) {
    const n = layer.counts[k],
      old = film.now && n ? 1 - layer.ages[k] / n / film.now : 1,
      strength = Math.min(1, n / full) * (0.35 + 0.65 * old),
      f = Math.min(1, fresh[k] / many) * 0.9,
      d = Math.min(1, gone[k] / many) * 0.8;
    for (let j = 0; j < 3; j++) {
      let v = ground[j] + (ink[j] - ground[j]) * strength;
      v += (dropped[j] - v) * d;
      pixels[4 * k + j] = v + (born[j] - v) * f;
    }
    pixels[4 * k + 3] = 255;
  }
  c.putImageData(image, 0, 0);
}

function bars(canvas, values, label) {
  const height = 90,
    [c, width] = fit(canvas, height),
    most = Math.max(...values, 1),
    w = width / values.length;
  values.forEach((v, i) => {
    c.fillStyle = v ? css("--loss") : css("--dropped");
    c.fillRect(
      i * w,
      height - 14 - (v / most) * (height - 18),
      Math.max(w - 0.4, 0.5),
      Math.max((v / most) * (height - 18), 1),
    );
  });
  c.fillStyle = css("--soft");
  c.font = "12px system-ui";
  c.fillText(label, 2, height - 2);
}

function zoom(film, i) {
  const layer = film.layers[i],
    dialog = $("zoom");
  dialog.replaceChildren();
  const head = document.createElement("h2");
  head.textContent = `${layer.name}, ${layer.shape.join(" x ")}: ${layer.nnz.toLocaleString()} weights, ${((100 * layer.nnz) / layer.size).toFixed(2)} %`;
  const close = document.createElement("button");
  close.textContent = "Close";
  close.onclick = () => dialog.close();
  const large = document.createElement("canvas");
  large.className = "large";
  large.style.maxHeight = "60vh";
  large.style.objectFit = "contain";
  const ins = document.createElement("canvas"),
    outs = document.createElement("canvas");
  dialog.append(head, close, large, ins, outs);
  dialog.showModal();
  mask(large, film, i);
  bars(ins, Array.from(layer.fanIn), `fan-in of ${layer.rows} outputs (${layer.deadRows} without any input)`);
  bars(outs, Array.from(layer.fanOut), `fan-out of ${layer.columns} inputs`);
}
