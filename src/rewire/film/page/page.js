// The page: which films are shown, the time slider, and following what is written.
const FILMS = window.REWIRE_FILMS || []; // films inside this page; without any, the server is asked
const films = [],
  shown = [];
let views = [],
  time = 0,
  playing = false,
  following = true;
// All shown runs share one axis, the steps; the slider stops at every step at which one of them was rewired.
let moments = [0],
  last = 0;
const length = () => moments.length - 1;
const END = Infinity; // the last moment, however many there will be when the films have been read
const stepAt = (index) => (index >= length() ? last : moments[index]); // at the end, of the training and not of the rewirings

function measure() {
  const kept = moments[time];
  moments = [...new Set(shown.flatMap((f) => f.columns.map((k) => k.step)))].sort((a, b) => a - b);
  if (!moments.length) moments = [0];
  last = Math.max(0, ...shown.map((f) => f.end()));
  const found = moments.indexOf(kept); // new rewirings of another run may lie before this one
  if (found >= 0) time = found;
  time = Math.min(time, length());
  $("time").max = length();
}

function build() {
  $("runs").replaceChildren();
  $("runs").classList.toggle("two", shown.length > 1);
  $("choice").hidden = films.length < 2;
  views = shown.map(buildRun);
}
function buildRun(film) {
  const section = make("section", "", "run"),
    problem = make("p", "", "problem"),
    method = make("details", make("summary", "Method"), "soft"),
    image = (label) => {
      const canvas = make("canvas");
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", label);
      return canvas;
    };
  section.setAttribute("aria-label", film.title);
  method.append(film.about ? film.about.method : "");
  const view = {
    film,
    problem,
    river: image("River: weights of each layer over time"),
    metrics: image("Loss and accuracy"),
    counts: image("Share of positions ever tried, and outputs without any input"),
    tiles: [],
  };
  const head = make("h2", film.title),
    name = film.about && film.about.title !== film.title ? make("span", film.about.title, "soft") : "",
    legend = make("div", "", "legend layers"),
    tiles = make("div", "", "tiles"),
    swatch = (i) => {
      const box = make("i");
      box.style.background = hue(i, film.layers.length);
      return box;
    };
  head.append(" ", name);
  film.layers.forEach((layer, i) => {
    const item = make("span", swatch(i));
    item.append(layer.name);
    legend.append(item);
    const button = make("button", "", "tile"),
      canvas = image(`Mask of ${layer.name}`),
      share = make("span", "", "share"),
      title = make("span", swatch(i), "name");
    title.append(layer.name);
    title.title = layer.name;
    button.append(canvas, title, share);
    button.onclick = () => zoom(film, i);
    tiles.append(button);
    view.tiles.push([canvas, share]);
  });
  const key = make("p", "", "legend");
  for (const [colourName, text] of [
    ["--born", "born in this rewiring"],
    ["--dropped", "dropped"],
    ["--ink", dark() ? "survivors, lighter with age" : "survivors, darker with age"],
  ]) {
    const box = make("i"),
      item = make("span", box);
    if (colourName === "--ink") box.className = "ages";
    else box.style.background = `var(${colourName})`;
    item.append(text);
    key.append(item);
  }
  section.append(head, method, problem, view.river, legend, view.metrics, view.counts, make("h2", "Masks"), key, tiles);
  const point = (event) => {
    const box = view.river.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  view.river.onclick = (event) => {
    const x = point(event).x,
      width = view.river.clientWidth,
      far = moments.map((step, i) => Math.abs(across(i === length() ? last : step, last, width) - x));
    go(far.indexOf(Math.min(...far)));
  };
  view.river.onpointermove = (event) => tell(event, view, layerAt(view.river, film, last, point(event)));
  view.river.onpointerleave = () => $("tip").classList.remove("shown");
  $("runs").append(section);
  return view;
}
function tell(event, { film }, found) {
  const tip = $("tip");
  tip.classList.toggle("shown", !!found);
  if (!found) return;
  const { i, t } = found,
    layer = film.layers[i],
    weights = film.columns[t].nnz[i],
    before = t ? film.columns[t - 1].nnz[i] : weights,
    edit = t ? film.edits[t - 1].layers[i] : null;
  const lines = [`${count(weights)} weights, ${((100 * weights) / layer.size).toFixed(2)} %`];
  if (edit) lines.push(`${count(edit.grow.length)} born, ${count(edit.drop.length)} dropped: ${signed(weights - before)}`);
  lines.push(`${signed(weights - film.columns[0].nnz[i])} since the start`);
  tip.replaceChildren(make("b", `${layer.name}, step ${count(film.columns[t].step)}`), ...lines.map((text) => make("div", text)));
  const wide = document.documentElement.clientWidth;
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, wide - tip.offsetWidth - 8))}px`;
  tip.style.top = `${event.clientY + 16}px`;
}
const signed = (n) => (n ? (n > 0 ? "+" : "\u2212") + count(Math.abs(n)) : "no change");

let waiting = false;
function draw() {
  if (!waiting) {
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      paint();
    });
  }
}
function paint() {
  measure();
  const slider = $("time"),
    head = playing ? moments[time] : stepAt(time); // while it plays, frames lead on from here
  slider.value = time;
  slider.setAttribute("aria-valuetext", `step ${count(head)}`);
  for (const view of views) {
    const film = view.film;
    film.seek(film.at(moments[time]));
    view.problem.textContent = film.problem;
    if (!film.columns.length) continue;
    river(view.river, film, last, head);
    const drawn = drawnMetrics(film);
    view.metrics.hidden = !drawn.length;
    curve(
      view.metrics,
      film,
      last,
      head,
      drawn.map((k, i) => [
        k,
        film.metrics.filter((m) => k in m).map((m) => [m.step, m[k]]),
        i ? "--accuracy" : "--loss",
        (v) => (/acc/i.test(k) && v >= 0 && v <= 1 ? (100 * v).toFixed(1) + " %" : v.toPrecision(3)),
      ]),
    );
    // after the last rewiring nothing changes until the training ends
    const final = film.columns[film.columns.length - 1],
      noted = [...film.columns, { ...final, step: film.end() }];
    curve(view.counts, film, last, head, [
      ["ever tried", noted.map((k) => [k.step, k.explored]), "--born", (v) => (100 * v).toFixed(1) + " %"],
      ["empty outputs", noted.map((k) => [k.step, k.dead]), "--dropped", count],
    ]);
    view.tiles.forEach(([canvas, label], i) => {
      mask(canvas, film, i);
      label.textContent = `${((100 * film.layers[i].nnz) / film.layers[i].size).toFixed(1)} %`;
    });
  }
  drawZoom();
  $("where").textContent = `step ${count(head)}`;
}
function drawnMetrics(film) {
  // two curves: a loss and an accuracy if there are any, else what came first
  const keys = [...new Set(film.metrics.flatMap((m) => Object.keys(m)))].filter((k) => !["kind", "step"].includes(k));
  const loss = keys.find((k) => /loss/i.test(k)) || keys[0],
    rest = keys.filter((k) => k !== loss);
  return [loss, rest.find((k) => /acc/i.test(k)) || rest[0]].filter(Boolean);
}
function go(to) {
  measure();
  time = Math.max(0, Math.min(to, length()));
  following = time === length();
  say();
  draw();
}
function say() {
  const words = () => shown.map((f) => (f.seek(f.at(moments[time])), f.describe())).join(". ");
  $("said").textContent = playing ? "" : words();
}
function play(on) {
  playing = on;
  $("play").textContent = on ? "Pause" : "Play";
  $("play").setAttribute("aria-pressed", on);
  if (on) {
    if (time === length()) time = 0;
    then = performance.now();
    paint();
    requestAnimationFrame(tick);
  } else go(time);
}
let then = 0;
function tick(now) {
  // the head moves with every frame; masks and curves change when it reaches a rewiring
  if (!playing) return;
  const interval = Math.max(33, 6000 / (length() + 1));
  if (now - then >= interval) {
    then = now - then > 2 * interval ? now : then + interval;
    if (time >= length()) return play(false);
    time++;
    paint();
  }
  const share = Math.min(1, (now - then) / interval),
    head = moments[time] + share * ((time < length() ? moments[time + 1] : last) - moments[time]);
  for (const { film, river: canvas } of views) if (film.columns.length) river(canvas, film, last, head);
  requestAnimationFrame(tick);
}
$("play").onclick = () => play(!playing);
$("time").oninput = (event) => {
  playing && play(false);
  go(+event.target.value);
};
addEventListener("keydown", (event) => {
  if (/^(INPUT|SELECT|BUTTON|SUMMARY)$/.test(event.target.tagName)) return; // these use the keys themselves
  if (event.key === " ") {
    event.preventDefault();
    play(!playing);
  }
  if (event.key === "ArrowRight") go(time + 1);
  if (event.key === "ArrowLeft") go(time - 1);
  if (event.key === "Home") go(0);
  if (event.key === "End") go(END);
});
addEventListener("resize", draw);
scheme.addEventListener("change", () => {
  styles.clear();
  build();
  draw();
});
function choose() {
  shown.length = 0;
  shown.push(films[+$("first").value]);
  if ($("second").value !== "") shown.push(films[+$("second").value]);
  build();
  measure();
  go(following ? END : time);
}
$("first").onchange = $("second").onchange = choose;

async function follow(film) {
  // whatever was appended since the last look
  const answer = await fetch(`/film?index=${film.index}&from=${film.bytes}`);
  if (!answer.ok) {
    film.problem = "this film cannot be read any more";
    return false;
  }
  const bytes = new Uint8Array(await answer.arrayBuffer()),
    version = answer.headers.get("Film-Version");
  if (film.bytes && (version !== film.version || +answer.headers.get("Film-Size") < film.bytes)) {
    film.reset(); // the training was resumed from an earlier step
    return true;
  }
  film.version = version;
  if (!bytes.length) return false;
  film.bytes += bytes.length;
  await film.add(bytes);
  return true;
}
async function list() {
  // films that are not in the lists of runs yet
  const entries = FILMS.length ? FILMS : await (await fetch("/films")).json();
  entries.slice(films.length).forEach((entry) => {
    for (const id of ["first", "second"]) $(id).append(new Option(entry.title, films.length));
    films.push(new Film(entry.title, films.length));
  });
}
async function main() {
  await list();
  if (FILMS.length) {
    for (const [i, film] of films.entries()) await film.add(fromBase64(FILMS[i].data));
  } else while (await follow(films[0]));
  if (films.length > 1 && FILMS.length) $("second").value = 1;
  choose();
  document.body.dataset.ready = "yes";
  if (FILMS.length) return;
  for (;;) {
    let news = false;
    for (const film of [...shown]) {
      const about = film.about;
      while (await follow(film)) news = true;
      if (film.about !== about) {
        build();
        measure();
        say();
      }
    }
    await list();
    if (news) {
      if (following && !playing) go(END);
      else draw();
    }
    await new Promise((done) => setTimeout(done, 1000));
  }
}
main().catch((error) => {
  $("said").textContent = `The page lost its server: ${error.message}`;
});
