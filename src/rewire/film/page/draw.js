// Drawing: what all plots share, the curves, the masks and one enlarged layer.
const $ = (id) => document.getElementById(id);
const styles = new Map(); // read once for each scheme: asking the browser forces it to lay out the page
const css = (name) => {
  if (!styles.has(name)) styles.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return styles.get(name);
};
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
const wideScreen = matchMedia("(min-width: 2200px)"); // as in page.css
const enlarge = () => (wideScreen.matches ? 1.5 : 1); // of everything that is text in a plot
const room = (width) => (width >= 620 * enlarge() ? enlarge() * Math.min(250, Math.max(170, width * 0.15)) : 0); // for labels
const EDGE = 6; // left and right of a plot
// where a step is; the river and all curves share this axis
const across = (step, last, width) => EDGE + (last ? ((width - room(width) - 2 * EDGE) * step) / last : 0);

function ticks(last, width) {
  // round steps, not more than fit
  const most = Math.max(2, (width - room(width)) / (120 * enlarge()));
  let size = 1;
  while (last / size > most) size *= String(size)[0] === "2" ? 2.5 : 2;
  const list = [];
  for (let step = 0; step <= last; step += size) list.push(step);
  return list;
}
function shortened(c, text, most) {
  // without its middle if it is too long
  if (c.measureText(text).width <= most) return text;
  for (let n = text.length - 1; n > 3; n--) {
    const short = text.slice(0, Math.ceil(n / 2)) + "\u2026" + text.slice(text.length - Math.floor(n / 2));
    if (c.measureText(short).width <= most) return short;
  }
  return "\u2026";
}
const count = (n) => Math.round(n).toLocaleString("en");
const font = (size, weight = "") => `${weight} ${size * enlarge()}px system-ui, sans-serif`;

const CURVE = 92; // the height of a plot of curves
function curve(canvas, film, last, head, series) {
  const larger = enlarge(),
    height = CURVE * larger,
    [c, width] = fit(canvas, height),
    beside = room(width),
    end = across(last, last, width),
    low = height - 8,
    high = beside ? 10 : 24 * larger;
  c.strokeStyle = css("--line");
  c.lineWidth = 1;
  for (const step of ticks(last, width)) {
    const x = Math.round(across(step, last, width)) + 0.5;
    c.beginPath();
    c.moveTo(x, high - 4);
    c.lineTo(x, low + 4);
    c.stroke();
  }
  let at = beside ? high + 12 * larger : EDGE;
  c.textBaseline = "alphabetic";
  for (const [name, points, colourName, format] of series) {
    if (!points.length) continue;
    const values = points.map((p) => p[1]),
      least = Math.min(...values),
      most = Math.max(...values),
      y = (v) => low - ((v - least) / (most - least || 1)) * (low - high);
    c.strokeStyle = c.fillStyle = css(colourName);
    c.lineWidth = 2;
    c.lineJoin = "round";
    c.beginPath();
    points.forEach(([step, v], i) => {
      const x = across(step, last, width);
      i ? c.lineTo(x, y(v)) : c.moveTo(x, y(v));
    });
    c.stroke();
    const now = points.filter((p) => p[0] <= head).pop() || points[0];
    c.beginPath();
    c.arc(across(now[0], last, width), y(now[1]), 4, 0, 7);
    c.fill();
    const text = `${name} ${format(now[1])}`;
    if (beside) {
      c.font = font(13, "600");
      c.fillText(shortened(c, text, beside - 18), end + 16, at);
      c.fillStyle = css("--soft");
      c.font = font(12);
      c.fillText(least === most ? "constant" : `from ${format(least)} to ${format(most)}`, end + 16, at + 15 * larger);
      at += 38 * larger;
    } else {
      c.font = font(13, "600");
      c.fillText(text, at, 13 * larger);
      at += c.measureText(text).width + 18;
    }
  }
  c.fillStyle = css("--ink");
  c.fillRect(across(head, last, width) - 0.5, high - 4, 1, low - high + 8);
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
  // a few crowded cells must not make all others pale
  const full = Math.max(1, layer.size > cells ? Math.min((3 * layer.nnz) / cells, Math.max(...layer.counts)) : 1),
    many = Math.max(full * 0.25, 1);
  for (let k = 0; k < cells; k++) {
    const n = layer.counts[k],
      old = film.now && n ? 1 - layer.ages[k] / n / film.now : 1,
      strength = Math.min(1, n / full) * (0.3 + 0.7 * old),
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

function bars(canvas, values) {
  const height = 84,
    [c, width] = fit(canvas, height),
    most = values.reduce((a, b) => Math.max(a, b), 1),
    w = width / values.length;
  values.forEach((v, i) => {
    c.fillStyle = v ? css("--loss") : css("--dropped");
    const h = v ? Math.max((v / most) * (height - 4), 1) : 4;
    c.fillRect(i * w, height - h, Math.max(w - (w > 3 ? 1 : 0), 0.5), h);
  });
  c.fillStyle = css("--line");
  c.fillRect(0, height - 1, width, 1);
}

function make(tag, content = "", className = "") {
  const element = document.createElement(tag);
  element.append(content);
  if (className) element.className = className;
  return element;
}

let enlarged = null; // the film and the layer in the dialog
function zoom(film, i) {
  const dialog = $("zoom"),
    close = make("button", "Close"),
    large = make("canvas", "", "large");
  enlarged = { film, i, large, head: make("h2"), about: make("p", "", "soft") };
  enlarged.texts = [make("h3"), make("h3")];
  enlarged.bars = [make("canvas"), make("canvas")];
  close.onclick = () => dialog.close();
  dialog.onclose = () => (enlarged = null);
  const bar = make("div", enlarged.head, "bar");
  bar.append(close);
  dialog.replaceChildren(bar, enlarged.about, large);
  [0, 1].forEach((k) => dialog.append(enlarged.texts[k], enlarged.bars[k]));
  [large, ...enlarged.bars].forEach((canvas) => canvas.setAttribute("role", "img"));
  dialog.showModal();
  drawZoom();
}
function drawZoom() {
  if (!enlarged) return;
  const { film, i, large, head, about, texts, bars: canvases } = enlarged,
    layer = film.layers[i],
    edit = film.now ? film.edits[film.now - 1].layers[i] : { drop: [], grow: [] },
    most = (list) => count(list.reduce((a, b) => Math.max(a, b), 0));
  head.textContent = `${layer.name}, ${layer.shape.join(" x ")}`;
  const share = ((100 * layer.nnz) / layer.size).toFixed(2);
  about.textContent = `${count(layer.nnz)} weights, ${share} % of ${count(layer.size)} positions; ${count(edit.grow.length)} born and ${count(edit.drop.length)} dropped in this rewiring. Outputs down, inputs across.`;
  mask(large, film, i);
  large.setAttribute("aria-label", `Mask of ${layer.name}`);
  // cells are square, and all of them fit into the dialog
  large.style.aspectRatio = `${layer.wide} / ${layer.high}`;
  large.style.width = `min(100%, ${(46 * layer.wide) / layer.high}vh)`;
  const zeros = layer.fanOut.reduce((sum, n) => sum + !n, 0);
  texts[0].textContent = `Fan-in of ${count(layer.rows)} outputs: up to ${most(layer.fanIn)}, ${count(layer.deadRows)} without any input`;
  texts[1].textContent = `Fan-out of ${count(layer.columns)} inputs: up to ${most(layer.fanOut)}, ${count(zeros)} not used`;
  bars(canvases[0], Array.from(layer.fanIn));
  bars(canvases[1], Array.from(layer.fanOut));
  canvases.forEach((canvas, k) => canvas.setAttribute("aria-label", texts[k].textContent));
}
