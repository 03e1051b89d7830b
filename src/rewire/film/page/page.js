// The page: which films are shown, the time slider, and following what is written.
const FILMS = window.REWIRE_FILMS || []; // films inside this page; without any, the server is asked
const films = [],
  shown = [];
let views = [],
  time = 0,
  playing = false,
  following = true;
const length = () => Math.max(0, ...shown.map((f) => f.edits.length));

function build() {
  $("runs").replaceChildren();
  $("runs").classList.toggle("two", shown.length > 1);
  views = [];
  for (const film of shown) {
    const section = document.createElement("section");
    section.className = "run";
    section.setAttribute("aria-label", film.title);
    const head = document.createElement("h2");
    head.textContent = film.title;
    const method = document.createElement("details");
    method.className = "soft";
    method.style.overflowWrap = "anywhere";
    const summary = document.createElement("summary");
    summary.textContent = "method";
    method.append(summary, film.about ? film.about.method : "");
    const problem = document.createElement("p");
    problem.className = "problem";
    const make = (label) => {
      const c = document.createElement("canvas");
      c.setAttribute("role", "img");
      c.setAttribute("aria-label", label);
      return c;
    };
    const view = {
      film,
      problem,
      river: make("River: weights of each layer over time"),
      metrics: make("Loss and accuracy"),
      counts: make("Share of positions ever tried, and outputs without any input"),
      tiles: [],
    };
    const legend = document.createElement("div");
    legend.className = "legend";
    film.layers.forEach((l, i) => {
      const s = document.createElement("span"),
        box = document.createElement("i");
      box.style.background = hue(i, 0.9);
      s.append(box, l.name);
      legend.append(s);
    });
    const tiles = document.createElement("div");
    tiles.className = "tiles";
    film.layers.forEach((l, i) => {
      const b = document.createElement("button");
      b.className = "tile";
      const c = make(`Mask of ${l.name}`),
        s = document.createElement("span");
      b.append(c, s);
      b.onclick = () => zoom(film, i);
      tiles.append(b);
      view.tiles.push([c, s]);
    });
    section.append(
      head,
      method,
      problem,
      view.river,
      legend,
      view.metrics,
      view.counts,
      Object.assign(document.createElement("h2"), { textContent: "Masks" }),
      tiles,
    );
    view.river.onclick = (event) => {
      const box = view.river.getBoundingClientRect();
      go(Math.round(((event.clientX - box.left - 4) / (box.width - 8)) * length()));
    };
    $("runs").append(section);
    views.push(view);
  }
}

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
  const end = length(),
    last = Math.max(0, ...shown.flatMap((f) => [...f.columns, ...f.metrics].map((k) => k.step)));
  $("time").max = end;
  $("time").value = time;
  for (const view of views) {
    const film = view.film;
    film.seek(Math.min(time, film.edits.length));
    view.problem.textContent = film.problem;
    if (!film.columns.length) continue;
    river(view.river, film, end, film.now);
    curve(
      view.metrics,
      film,
      last,
      drawnMetrics(film)
        .map((k, i) => [
          k,
          film.metrics.filter((m) => k in m).map((m) => [m.step, m[k]]),
          i ? "--accuracy" : "--loss",
          (v) => v.toPrecision(3),
        ]),
    );
    curve(view.counts, film, last, [
      ["ever tried", film.columns.map((k) => [k.step, k.explored]), "--born", (v) => (100 * v).toFixed(1) + " %"],
      ["empty outputs", film.columns.map((k) => [k.step, k.dead]), "--dropped", (v) => v.toLocaleString()],
    ]);
    view.tiles.forEach(([canvas, label], i) => {
      mask(canvas, film, i);
      label.textContent = `${film.layers[i].name} ${((100 * film.layers[i].nnz) / film.layers[i].size).toFixed(1)} %`;
    });
  }
  const film = shown[0];
  $("where").textContent =
    film && film.columns[film.now] ? `step ${film.columns[film.now].step.toLocaleString()}` : "start";
}
function drawnMetrics(film) {
  // two curves: a loss and an accuracy if there are any, else what came first
  const keys = [...new Set(film.metrics.flatMap((m) => Object.keys(m)))].filter((k) => !["kind", "step"].includes(k));
  const loss = keys.find((k) => /loss/i.test(k)) || keys[0],
    rest = keys.filter((k) => k !== loss);
  return [loss, rest.find((k) => /acc/i.test(k)) || rest[0]].filter(Boolean);
}
function go(to) {
  time = Math.max(0, Math.min(to, length()));
  following = time === length();
  $("said").textContent = playing
    ? ""
    : shown.map((f) => (f.seek(Math.min(time, f.edits.length)), f.describe())).join(". ");
  draw();
}
function play(on) {
  playing = on;
  $("play").textContent = on ? "Pause" : "Play";
  $("play").setAttribute("aria-pressed", on);
  if (on) {
    if (time === length()) time = 0;
    then = performance.now();
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
  const head = Math.min(time + (now - then) / interval, length());
  for (const { film, river: canvas } of views)
    if (film.columns.length) river(canvas, film, length(), Math.min(head, film.edits.length));
  requestAnimationFrame(tick);
}
$("play").onclick = () => play(!playing);
$("time").oninput = (event) => {
  playing && play(false);
  go(+event.target.value);
};
addEventListener("keydown", (event) => {
  if (/^(INPUT|SELECT|BUTTON)$/.test(event.target.tagName) && event.key !== "Escape") return;
  if (event.key === " ") {
    event.preventDefault();
    play(!playing);
  }
  if (event.key === "ArrowRight") go(time + 1);
  if (event.key === "ArrowLeft") go(time - 1);
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
  go(following ? length() : time);
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
  await film.add(film.decoder.decode(bytes, { stream: true }));
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
    for (const [i, film] of films.entries()) await film.add(FILMS[i].text);
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
      if (film.about !== about) build();
    }
    await list();
    if (news) {
      if (following && !playing) go(length());
      else draw();
    }
    await new Promise((done) => setTimeout(done, 1000));
  }
}
main().catch((error) => {
  $("said").textContent = `The page lost its server: ${error.message}`;
});
