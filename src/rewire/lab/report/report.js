// Hover, sorting and choosing in a report. Everything that it shows is in the page already; nothing is fetched.
"use strict";

// A note beside the pointer or the focused cell, in place of the browser's own, which comes late and not on touch.
const tip = document.createElement("div");
tip.id = "tip";
tip.setAttribute("role", "status");
document.body.append(tip);
function note(of, x, y) {
  const text = of.dataset.note;
  tip.textContent = text || "";
  tip.classList.toggle("shown", !!text);
  if (!text) return;
  const width = Math.min(tip.offsetWidth, innerWidth - 16);
  tip.style.left = Math.max(8, Math.min(x + 12, innerWidth - width - 8)) + "px";
  const below = y + 18 + tip.offsetHeight < innerHeight;
  tip.style.top = (below ? y + 18 : Math.max(8, y - tip.offsetHeight - 12)) + "px";
}
const hide = () => tip.classList.remove("shown");
for (const cell of document.querySelectorAll("td[title]")) {
  cell.dataset.note = cell.title;
  cell.removeAttribute("title");
}
for (const circle of document.querySelectorAll(".points circle")) {
  circle.dataset.note = circle.textContent;
  circle.replaceChildren();
}
addEventListener("pointermove", (event) => {
  const of = event.target.closest && event.target.closest("[data-note]");
  of ? note(of, event.clientX, event.clientY) : document.activeElement.dataset.note || hide();
});
addEventListener("scroll", hide, { passive: true, capture: true });
addEventListener("keydown", (event) => event.key === "Escape" && hide());

// Cells of a table: one of them can be reached by Tab, the arrow keys move among them.
function moveWithArrows(table) {
  const cells = () => [...table.querySelectorAll("tbody tr")].map((row) => [...row.querySelectorAll("td")]);
  const first = table.querySelector("tbody td");
  if (first) first.tabIndex = 0;
  table.addEventListener("focusin", (event) => {
    const cell = event.target.closest("td");
    if (!cell) return;
    for (const other of table.querySelectorAll("td[tabindex]")) other.removeAttribute("tabindex");
    cell.tabIndex = 0;
    const box = cell.getBoundingClientRect();
    note(cell, box.left, box.bottom - 14);
  });
  table.addEventListener("focusout", hide);
  table.addEventListener("keydown", (event) => {
    const move = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    const cell = event.target.closest("td");
    if (!move || !cell) return;
    const rows = cells().filter((row) => row.length),
      row = rows.findIndex((r) => r.includes(cell)),
      next = rows[row + move[0]];
    const to = next && next[Math.min(rows[row].indexOf(cell) + move[1], next.length - (move[1] ? 0 : 1))];
    if (!to) return;
    event.preventDefault();
    to.tabIndex = 0;
    to.focus();
  });
}

// Sorting by a column, within each block: descending, ascending, then as it was.
function value(row, column) {
  if (column < 0) return row.querySelector("th").textContent.toLowerCase();
  let at = 0;
  for (const cell of row.querySelectorAll("td")) {
    at += cell.colSpan;
    if (column < at) {
      const number = parseFloat(cell.querySelector(".v").textContent.replace("−", "-").replaceAll(",", ""));
      return Number.isNaN(number) ? null : number;
    }
  }
  return null;
}
function sort(table, column, direction) {
  for (const body of table.tBodies) {
    const rows = [...body.rows].filter((row) => row.querySelector("td"));
    rows.sort((a, b) => {
      if (!direction) return a.dataset.place - b.dataset.place;
      const [x, y] = [value(a, column), value(b, column)];
      if (x === null || y === null) return (x === null) - (y === null);
      return (x < y ? -1 : x > y ? 1 : 0) * direction;
    });
    body.append(...rows);
  }
}
function makeSortable(table) {
  [...table.querySelectorAll("tbody tr")].forEach((row, i) => (row.dataset.place = i));
  const stub = table.querySelector("thead .stub"),
    columns = [...table.querySelectorAll("thead tr:last-child th")];
  const heads = [stub, ...columns].filter(Boolean);
  heads.forEach((head) => {
    const button = document.createElement("button"),
      column = head === stub ? -1 : columns.indexOf(head);
    button.append(...head.childNodes);
    button.title = "Sort within each block";
    head.append(button);
    button.onclick = () => {
      const now = head.getAttribute("aria-sort"),
        first = column < 0 ? "ascending" : "descending",
        second = column < 0 ? "descending" : "ascending";
      const next = now === first ? second : now === second ? "" : first;
      for (const other of heads) other.removeAttribute("aria-sort");
      if (next) head.setAttribute("aria-sort", next);
      sort(table, column, next === "ascending" ? 1 : next ? -1 : 0);
    };
  });
}
for (const table of document.querySelectorAll("table")) {
  moveWithArrows(table);
  makeSortable(table);
}

// Choosing among the curves of a figure: methods or layers.
for (const svg of document.querySelectorAll("svg")) {
  const marked = [...svg.querySelectorAll("[data-series]")],
    names = [...new Set(marked.map((one) => one.dataset.series))];
  if (names.length < 2) continue;
  const group = document.createElement("div");
  group.className = "choose";
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", "Show only");
  group.append("Show only ");
  const chosen = new Set();
  for (const name of names) {
    const button = document.createElement("button");
    button.textContent = name;
    button.setAttribute("aria-pressed", "false");
    button.onclick = () => {
      chosen.has(name) ? chosen.delete(name) : chosen.add(name);
      button.setAttribute("aria-pressed", String(chosen.has(name)));
      for (const one of marked) one.classList.toggle("faint", chosen.size > 0 && !chosen.has(one.dataset.series));
    };
    group.append(button);
  }
  svg.closest(".scroll").after(group);
}

// Masks: one layer at a time.
for (const details of document.querySelectorAll("details.layers")) {
  const rows = [...details.querySelectorAll(".masks")],
    label = document.createElement("label"),
    select = document.createElement("select");
  for (const row of rows) select.append(new Option(row.dataset.layer));
  select.value = details.dataset.first;
  select.onchange = () => rows.forEach((row) => (row.hidden = row.dataset.layer !== select.value));
  select.onchange();
  label.append("Layer ", select);
  details.querySelector("summary").after(label);
}

// Films: the page of `rewire watch` in a frame, when it is asked for.
for (const details of document.querySelectorAll("details.film"))
  details.addEventListener("toggle", () => {
    if (details.querySelector("iframe")) return;
    const frame = document.createElement("iframe");
    frame.title = "Films of rewirings";
    frame.srcdoc = JSON.parse(document.getElementById("film-page").textContent);
    details.append(frame);
  });
