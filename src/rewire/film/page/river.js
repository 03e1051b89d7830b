// The river: a band for each layer, as wide as it has weights, and ribbons between them at each rewiring.
// Colours follow the depth of the layers, from blue at the input to red at the output; lightness alternates.
// Ribbons stand out from the bands: they are further from the ground by `accent`.
function hue(i, layers, alpha = 1, accent = 0) {
  const depth = layers > 1 ? i / (layers - 1) : 0,
    light = (dark() ? 0.7 + accent : 0.63 - accent) + (i % 2 ? 0.07 : -0.07);
  return `oklch(${light} 0.135 ${(255 - 245 * depth + 360) % 360} / ${alpha})`;
}

function flows(before, after) {
  // from each layer that lost to each that gained, in proportion; more may be lost than gained if the density falls
  const change = after.map((n, i) => n - before[i]),
    gained = change.reduce((sum, d) => sum + Math.max(d, 0), 0),
    lost = change.reduce((sum, d) => sum - Math.min(d, 0), 0),
    moved = Math.min(gained, lost),
    list = [];
  change.forEach((loss, from) => {
    if (loss < 0 && moved)
      change.forEach((gain, to) => {
        if (gain > 0) list.push([from, to, (-loss / lost) * (gain / gained) * moved]);
      });
  });
  return list;
}

const ACCENT = 0.16; // of a ribbon's lightness
const ticksHeight = () => 22 * enlarge(); // of the axis below the river
const riverHeight = (width) => Math.round(Math.max(250, Math.min(560 * enlarge(), width * 0.3)));
// The whole river is drawn once, until there is a new rewiring, another size or another scheme; a frame only copies it.
function river(canvas, film, last, head) {
  const low = riverHeight(canvas.clientWidth || 600),
    height = low + ticksHeight(),
    [c, width] = fit(canvas, height),
    ratio = devicePixelRatio || 1;
  if (!film.columns.length) return;
  const key = [film.columns.length, film.end(), last, width, ratio, dark()].join();
  if (!canvas.drawn || canvas.drawn.key !== key) {
    const image = document.createElement("canvas");
    image.width = canvas.width;
    image.height = canvas.height;
    const context = image.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    canvas.drawn = { key, image, bands: drawRiver(context, width, low, film, last) };
  }
  const at = across(head, last, width),
    past = Math.round((at + 0.5) * ratio);
  c.setTransform(1, 0, 0, 1, 0, 0);
  const part = (from, to) =>
    to > from && c.drawImage(canvas.drawn.image, from, 0, to - from, canvas.height, from, 0, to - from, canvas.height);
  part(0, Math.min(past, canvas.width));
  c.globalAlpha = dark() ? 0.28 : 0.22;
  part(past, canvas.width);
  c.globalAlpha = 1;
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  axis(c, width, low, last);
  labels(c, width, low, film, last, canvas.drawn.bands);
  c.fillStyle = css("--ink");
  c.fillRect(at - 0.75, 0, 1.5, low);
  c.beginPath();
  c.arc(at, low + 1, 4, 0, 7);
  c.fill();
}

function axis(c, width, low, last) {
  c.font = font(12);
  c.textBaseline = "alphabetic";
  c.fillStyle = css("--soft");
  ticks(last, width).forEach((step, i) => {
    const text = i ? count(step) : "step 0",
      wide = c.measureText(text).width,
      x = across(step, last, width);
    c.fillRect(x - 0.5, low, 1, 4);
    c.fillText(text, Math.max(0, Math.min(x - wide / 2, across(last, last, width) - wide)), low + 17 * enlarge());
  });
}

function labels(c, width, low, film, last, bands) {
  // beside the ends of the bands: as many as fit, those of large layers first
  const beside = room(width),
    line = 16 * enlarge(),
    n = film.layers.length;
  if (!beside) return;
  const final = bands[bands.length - 1],
    first = film.columns[0].nnz,
    now = film.columns[film.now].nnz,
    end = across(last, last, width);
  const chosen = final
    .map(([top, high], i) => ({ i, y: top + high / 2, high }))
    .sort((a, b) => b.high - a.high)
    .slice(0, Math.floor(low / line))
    .sort((a, b) => a.y - b.y);
  chosen.forEach((one, k) => (one.at = Math.max(one.y, k ? chosen[k - 1].at + line : line / 2)));
  for (let k = chosen.length - 1, most = low - line / 2; k >= 0; k--, most -= line)
    chosen[k].at = Math.min(chosen[k].at, most);
  c.textBaseline = "middle";
  for (const { i, y, at } of chosen) {
    c.strokeStyle = hue(i, n);
    c.lineWidth = 1.5;
    c.beginPath();
    c.moveTo(across(film.end(), last, width) + 1, y);
    c.lineTo(end + 1, y);
    c.bezierCurveTo(end + 7, y, end + 5, at, end + 12, at);
    c.stroke();
    const change = first[i] ? Math.round(100 * (now[i] / first[i] - 1)) : 0,
      text = `${count(now[i])}${change ? ` ${change > 0 ? "+" : "\u2212"}${Math.abs(change)} %` : ""}`;
    c.font = font(12);
    const wide = c.measureText(text).width;
    c.font = font(12, "600");
    const name = shortened(c, film.layers[i].name, beside - wide - 24);
    c.fillStyle = css("--ink");
    c.fillText(name, end + 16, at);
    const after = c.measureText(name).width;
    c.font = font(12);
    c.fillStyle = css("--soft");
    c.fillText(text, end + 22 + after, at);
  }
  c.textBaseline = "alphabetic";
}

function drawRiver(c, width, height, film, last) {
  // returns the top and the height of each band at each moment
  const columns = film.columns,
    n = film.layers.length,
    gap = Math.min(3, 60 / n),
    thin = Math.min(1.5, 30 / n), // so that small layers are seen
    most = columns.reduce((m, k) => Math.max(m, k.total), 1),
    scale = (height - gap * (n - 1) - thin * n) / most;
  const bands = columns.map((column) => {
    let y = 0;
    return column.nnz.map((weights) => {
      const band = [y, weights * scale + thin];
      y += band[1] + gap;
      return band;
    });
  });
  const x = columns.map((column) => across(column.step, last, width)),
    // a rewiring takes no time; it is drawn before its step, no wider than needed to see it
    from = x.map((right, t) => (t ? Math.max(x[t - 1], right - 64) : right)),
    end = across(film.end(), last, width); // a run that is shorter than the other ends before the axis does
  for (let i = 0; i < n; i++) {
    const edge = (y) => {
      const path = [[x[0], y(bands[0][i])]];
      for (let t = 1; t < columns.length; t++) path.push([from[t], y(bands[t - 1][i])], [x[t], y(bands[t][i]), true]);
      path.push([end, y(bands[bands.length - 1][i])]);
      return path;
    };
    const top = edge((band) => band[0]),
      low = edge((band) => band[0] + band[1]);
    c.fillStyle = hue(i, n, 0.82);
    c.beginPath();
    c.moveTo(...top[0]);
    for (let k = 1; k < top.length; k++) bend(c, top[k - 1], top[k], top[k][2]);
    c.lineTo(...low[low.length - 1].slice(0, 2));
    for (let k = low.length - 2; k >= 0; k--) bend(c, low[k + 1], low[k], low[k + 1][2]);
    c.fill();
  }
  for (let t = 1; t < columns.length; t++) {
    const stay = columns[t].nnz.map((now, i) => Math.min(now, columns[t - 1].nnz[i]) * scale),
      out = bands[t - 1].map(([top], i) => top + stay[i]),
      into = bands[t].map(([top], i) => top + stay[i]);
    for (const [a, b, weights] of flows(columns[t - 1].nnz, columns[t].nnz)) {
      const high = weights * scale;
      if (high > 0.12)
        ribbon(c, from[t], x[t], out[a], into[b], Math.max(high, 0.9), hue(a, n, 0.95, ACCENT), hue(b, n, 0.95, ACCENT));
      out[a] += high;
      into[b] += high;
    }
  }
  return bands;
}
function bend(c, [ax, ay], [bx, by], curved) {
  const mid = (ax + bx) / 2;
  if (curved) c.bezierCurveTo(mid, ay, mid, by, bx, by);
  else c.lineTo(bx, by);
}
function ribbon(c, left, right, a, b, high, first, second) {
  const mid = (left + right) / 2,
    colours = c.createLinearGradient(left, 0, right, 0);
  colours.addColorStop(0, first);
  colours.addColorStop(1, second);
  c.fillStyle = colours;
  c.beginPath();
  c.moveTo(left, a);
  c.bezierCurveTo(mid, a, mid, b, right, b);
  c.lineTo(right, b + high);
  c.bezierCurveTo(mid, b + high, mid, a + high, left, a + high);
  c.fill();
  if (right - left < 12 || high < 4) return; // an edge would hide thin ones
  c.strokeStyle = css("--ground"); // where a ribbon crosses bands of its own colour
  c.lineWidth = 0.5;
  c.stroke();
}

function layerAt(canvas, film, last, point) {
  // the layer and the moment below a point of the river, if there is one
  const width = canvas.clientWidth,
    t = film.columns.filter((column) => across(column.step, last, width) <= point.x).length - 1;
  if (t < 0 || !canvas.drawn || point.x > across(film.end(), last, width)) return null;
  const i = canvas.drawn.bands[t].findIndex(([top, high]) => point.y >= top - 1 && point.y <= top + high + 1);
  return i < 0 ? null : { i, t };
}
