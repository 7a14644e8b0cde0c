"use strict";
/* Numbers as people read them, elements, and the two kinds of drawing: a line over time and bars. */

const KNOWN_TIERS = ["device", "host", "disk", "remote"];

function tierClass(name) {
  return "tier-" + (KNOWN_TIERS.includes(name) ? name : "other");
}

function bytesText(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; unit += 1; }
  return (count >= 100 || unit === 0 ? Math.round(count) : count.toPrecision(3)) + " " + units[unit];
}

function countText(count) {
  return count.toLocaleString("en-US");
}

function percentText(ratio) {
  return ratio === null || ratio === undefined ? "–" : (100 * ratio).toFixed(1) + " %";
}

function agoText(seconds) {
  const days = Math.floor(seconds / 86400), hours = Math.floor(seconds / 3600) % 24;
  const minutes = Math.floor(seconds / 60) % 60;
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min ${Math.floor(seconds) % 60} s` : `${Math.floor(seconds)} s`;
}

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "class") made.className = value; else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function drawn(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

/* A line over time in `home`. points: [[unix seconds, value or null]]; top: of the scale; shown:
 * how a value is written; a null is a gap. Hovering reads a point. */
function lineChart(home, points, top, shown, colour) {
  const width = Math.max(200, home.clientWidth), height = home.closest(".chart") ? 168 : 120;
  const left = 58, right = 6, up = 8, down = 20;
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  const known = points.filter((point) => point[1] !== null);
  if (!known.length) {
    home.replaceChildren(element("p", { class: "empty" }, "nothing yet"));
    return;
  }
  const first = points[0][0], last = Math.max(points[points.length - 1][0], first + 1);
  const x = (time) => left + (width - left - right) * (time - first) / (last - first);
  const y = (value) => height - down - (height - up - down) * Math.min(1, value / (top || 1));
  for (const part of [0, 0.5, 1]) {
    const at = y(top * part);
    svg.append(drawn("line", { class: "grid", x1: left, x2: width - right, y1: at, y2: at }));
    const label = drawn("text", { x: left - 7, y: at + 4, "text-anchor": "end" });
    label.textContent = shown(top * part);
    svg.append(label);
  }
  for (const [time, anchor] of [[first, "start"], [last, "end"]]) {
    const label = drawn("text", { x: x(time), y: height - 4, "text-anchor": anchor });
    label.textContent = new Date(time * 1000).toLocaleTimeString([], { hour12: false });
    svg.append(label);
  }
  for (const run of runsOf(points)) {
    const line = run.map((point) => `${x(point[0]).toFixed(1)},${y(point[1]).toFixed(1)}`);
    const base = height - down;
    const area = [`${x(run[0][0])},${base}`, ...line, `${x(run[run.length - 1][0])},${base}`];
    svg.append(drawn("polygon", { class: "area", points: area.join(" "), fill: colour }));
    svg.append(drawn("polyline", { class: "path", points: line.join(" "), stroke: colour }));
    if (run.length === 1) {
      svg.append(drawn("circle", { cx: x(run[0][0]), cy: y(run[0][1]), r: 2.5, fill: colour }));
    }
  }
  const reading = element("div", { class: "reading" });
  const cross = drawn("line", { class: "cross", y1: up, y2: height - down, visibility: "hidden" });
  svg.append(cross);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const time = first + (last - first) * ((event.clientX - box.left) * width / box.width - left) / (width - left - right);
    const near = known.reduce((a, b) => Math.abs(b[0] - time) < Math.abs(a[0] - time) ? b : a);
    cross.setAttribute("x1", x(near[0]));
    cross.setAttribute("x2", x(near[0]));
    cross.setAttribute("visibility", "visible");
    reading.textContent = `${new Date(near[0] * 1000).toLocaleTimeString([], { hour12: false })}: ${shown(near[1])}`;
  });
  svg.addEventListener("pointerleave", () => {
    cross.setAttribute("visibility", "hidden");
    reading.textContent = "";
  });
  const now = known[known.length - 1][1];
  svg.setAttribute("aria-label", `now ${shown(now)}`);
  home.replaceChildren(svg, reading);
}

function runsOf(points) {
  const runs = [];
  let run = [];
  for (const point of points) {
    if (point[1] === null) {
      if (run.length) runs.push(run);
      run = [];
    } else {
      run.push(point);
    }
  }
  if (run.length) runs.push(run);
  return runs;
}

/* Bars in `home`, the longest first. counts: {name: count}; unit: what is counted. */
function barChart(home, counts, unit) {
  const rows = Object.entries(counts).filter((row) => row[1] > 0).sort((a, b) => b[1] - a[1]);
  if (!rows.length) {
    home.replaceChildren(element("p", { class: "empty" }, "none"));
    return;
  }
  const all = rows.reduce((sum, row) => sum + row[1], 0), bars = element("div", { class: "bars" });
  for (const [name, count] of rows) {
    const bar = element("div", { class: "bar" });
    bar.style.width = `${(100 * count / rows[0][1]).toFixed(2)}%`;
    bars.append(element("div", { class: "bar-row" }, element("span", {}, name), bar,
      element("span", { class: "count" }, `${countText(count)} ${unit}, ${percentText(count / all)}`)));
  }
  home.replaceChildren(bars);
}

/* Rows in `table`. columns: [[title, is a number]]; rows: lists of texts; empty: said where none. */
function fillTable(table, columns, rows, empty) {
  if (!rows.length) {
    table.replaceChildren(element("caption", { class: "empty" }, empty));
    return;
  }
  const head = element("tr", {});
  for (const [title, number] of columns) {
    head.append(element("th", { class: number ? "number" : "", scope: "col" }, title));
  }
  const body = element("tbody", {});
  for (const row of rows) {
    const line = element("tr", {});
    row.forEach((text, at) => line.append(element("td", { class: columns[at][1] ? "number" : "" }, text)));
    body.append(line);
  }
  table.replaceChildren(element("thead", {}, head), body);
}
