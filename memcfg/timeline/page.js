// The page of a memory timeline: reads the JSON above, draws on one canvas.
// Positions in time are indices of events; a clock maps them to nanoseconds.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const canvas = $("canvas"), pen = canvas.getContext("2d"), tip = $("tip");
const { events, boxes, copies, arrows, text } = data;
const EVENTS = events.kind.length, BOXES = boxes.name.length, COPIES = copies.name.length;
const LEFT = 78, RIGHT = 14, LIVE = 92, LANE = 17, GAP = 22, AXIS = 24, TOP = 10;
const OPS = new Set(["forward", "backward", "update", "encode", "decode", "allocate", "free", "refused"]);

const [ROLE, LAYER] = data.recorded ? ["holder", "where"] : ["role", "layer"];

const state = { by: "role", axis: "time", clock: "planned", arrows: true, query: "", only: -1, box: -1, hover: -1 };
const view = { x0: 0, x1: 1, y0: 0, y1: 1 };
let found = null, xs = null, shape = null, frame = 0, printing = false;

// -- words ------------------------------------------------------------------------

function inBytes(n) {
  if (n < 1024) return n + " B";
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let at = -1;
  while (n >= 1024 && at < 3) { n /= 1024; at++; }
  return n.toFixed(2) + " " + units[at];  // as memcfg.units writes sizes
}
const spoken = (role) => data.recorded ? role : role.replaceAll("_", " ");
const exact = (n) => inBytes(n) + (n < 1024 ? "" : " (" + n.toLocaleString("en") + " B)");

function inTime(ns, step = 0) {
  if (ns === 0 && !step) return "0 s";
  const size = Math.max(Math.abs(ns), step);
  const [unit, by] = size >= 1e9 ? ["s", 1e9] : size >= 1e6 ? ["ms", 1e6] : size >= 1e3 ? ["µs", 1e3] : ["ns", 1];
  const digits = step ? Math.max(0, Math.ceil(-Math.log10(step / by) - 1e-9)) : ns / by < 10 ? 2 : ns / by < 100 ? 1 : 0;
  return (ns / by).toFixed(Math.min(digits, 6)) + " " + unit;
}

function shorten(words, width) {  // keeps both ends, as names end in what tells them apart
  const fits = Math.floor(width / pen.measureText("0").width);
  if (words.length <= fits) return words;
  if (fits < 9) return "";  // fewer letters say nothing
  const head = Math.ceil((fits - 1) / 2);
  return words.slice(0, head) + "…" + words.slice(words.length - (fits - 1 - head));
}

// -- positions --------------------------------------------------------------------

function setAxis() {  // xs[e]: where event e begins; in time, or each op as wide as another
  const times = data.clocks[state.clock];
  if (state.axis === "time") { xs = times; return; }
  xs = [0];
  for (let e = 0; e < EVENTS; e++) xs.push(xs[e] + (OPS.has(data.kinds[events.kind[e]]) ? 1 : 0));
}

function eventAt(x, of = xs) {  // the last event that begins at or before x
  let low = 0, high = EVENTS;
  while (low < high) { const mid = (low + high + 1) >> 1; if (of[mid] <= x) low = mid; else high = mid - 1; }
  return Math.min(low, Math.max(EVENTS - 1, 0));
}

function place(ns) {  // of a time of a copy on the axis
  if (state.axis === "time") return ns;
  const times = data.clocks[state.clock], e = eventAt(ns, times);
  const part = (ns - times[e]) / ((times[e + 1] - times[e]) || 1);
  return xs[e] + Math.min(Math.max(part, 0), 1) * (xs[e + 1] - xs[e]);
}

const span = (k) => state.clock === "measured" && copies.mend.length
  ? [copies.mbegin[k], copies.mend[k]] : [copies.begin[k], copies.end[k]];

function domain() {
  let end = xs[EVENTS];
  if (state.axis === "time") for (let k = 0; k < COPIES; k++) end = Math.max(end, span(k)[1]);
  let height = data.peak;
  for (let b = 0; b < BOXES; b++) height = Math.max(height, boxes.offset[b] + boxes.bytes[b]);
  const near = data.limit !== null && data.limit < 1.5 * height ? data.limit : 0;
  return { x0: 0, x1: end || 1, y0: 0, y1: (Math.max(height, near) || 1) * 1.04 };
}

function layOut() {
  const ratio = window.devicePixelRatio || 1, width = $("plot").clientWidth;
  const lanes = 1 + data.queues.length;
  const below = GAP + LIVE + GAP + lanes * LANE + AXIS;
  const height = Math.max(below + 300, printing ? 640 : Math.min(innerHeight - canvas.getBoundingClientRect().top - scrollY - 60, 900));
  canvas.style.height = height + "px";
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
  }
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  const main = height - below - TOP;
  shape = { width, height, wide: width - LEFT - RIGHT, main, live: TOP + main + GAP, lanes: TOP + main + GAP + LIVE + GAP, bottom: height - AXIS };
}
const px = (x) => LEFT + shape.wide * (x - view.x0) / (view.x1 - view.x0);
const py = (y) => TOP + shape.main * (1 - (y - view.y0) / (view.y1 - view.y0));
const ux = (p) => view.x0 + (p - LEFT) / shape.wide * (view.x1 - view.x0);
const uy = (p) => view.y0 + (1 - (p - TOP) / shape.main) * (view.y1 - view.y0);

// -- drawing ----------------------------------------------------------------------

const paint = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
function inkOn(colour) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#101418" : "#ffffff";
}
const group = (b) => state.by === "role" ? boxes.role[b] : boxes.layer[b];
const colours = () => state.by === "role" ? data.roleColours : data.layerColours;
const shown = (b) => (state.only < 0 || group(b) === state.only) && (!found || found.has(b));

function draw() {
  frame = 0;
  layOut();
  const c = { back: paint("back"), fore: paint("fore"), soft: paint("soft"), line: paint("line"), grid: paint("grid"), limit: paint("limit"), measured: paint("measured") };
  pen.fillStyle = c.back; pen.fillRect(0, 0, shape.width, shape.height);
  pen.font = "11px system-ui, Segoe UI, Helvetica, Arial, sans-serif";
  pen.textBaseline = "middle"; pen.lineWidth = 1;
  drawGrid(c);
  clipped(TOP, shape.main, () => drawBoxes(c));
  drawLevels(c); drawLive(c); drawLanes(c);
}
function redraw() { if (!frame) frame = requestAnimationFrame(draw); }
function clipped(top, height, act) {
  pen.save(); pen.beginPath(); pen.rect(LEFT, top, shape.wide, height); pen.clip(); act(); pen.restore();
}
function nice(size, count, base) {  // a round step: 1, 2, 5 times a power of ten, or a power of two
  if (base === 2) return Math.max(1, 2 ** Math.ceil(Math.log2(size / count)));
  const power = 10 ** Math.floor(Math.log10(size / count)), rest = size / count / power;
  return power * (rest <= 1 ? 1 : rest <= 2 ? 2 : rest <= 5 ? 5 : 10);
}
function rule(x0, y0, x1, y1, colour, dash = []) {
  pen.strokeStyle = colour; pen.setLineDash(dash); pen.beginPath();
  pen.moveTo(x0, y0); pen.lineTo(x1, y1); pen.stroke(); pen.setLineDash([]);
}

function drawGrid(c) {
  const end = shape.width - RIGHT;
  pen.fillStyle = c.soft;
  let step = nice(view.y1 - view.y0, shape.main / 46, 2);
  pen.textAlign = "right";
  for (let y = Math.ceil(view.y0 / step) * step; y <= view.y1; y += step) {
    const at = Math.round(py(y)) + 0.5;
    rule(LEFT, at, end, at, c.grid);
    if (at > TOP + 14) pen.fillText(inBytes(y), LEFT - 7, at);
  }
  step = nice(view.x1 - view.x0, Math.max(shape.wide / 90, 2), 10);
  if (state.axis === "ops") step = Math.max(1, step);
  pen.textAlign = "center";
  for (let x = Math.ceil(view.x0 / step) * step; x <= view.x1; x += step) {
    const at = Math.round(px(x)) + 0.5;
    rule(at, TOP, at, shape.bottom, c.grid);
    const words = state.axis === "ops" ? Math.round(x).toLocaleString("en") : inTime(x, step);
    const half = pen.measureText(words).width / 2;
    pen.fillText(words, Math.min(Math.max(at, LEFT + half - 8), end - half), shape.bottom + 12);
  }
  pen.textAlign = "left";
  pen.fillText(state.axis === "ops" ? "op" : data.recorded ? "time" : state.clock, 8, shape.bottom + 12);
  pen.fillText(data.places ? "address" : "packed", 8, TOP + 2);
}

let hatch = null;
function hatching() {
  if (hatch) return hatch;
  const tile = document.createElement("canvas");
  tile.width = tile.height = 7;
  const ink = tile.getContext("2d");
  ink.strokeStyle = "#ffffff88"; ink.lineWidth = 1.6;
  for (const at of [-7, 0, 7]) { ink.beginPath(); ink.moveTo(at, 7); ink.lineTo(at + 7, 0); ink.stroke(); }
  return (hatch = pen.createPattern(tile, "repeat"));
}

function boxAt(b) {  // left, top, width, height in pixels, at least one wide
  const x0 = px(xs[boxes.begin[b]]), x1 = px(xs[boxes.end[b]]);
  const y1 = py(boxes.offset[b]), y0 = py(boxes.offset[b] + boxes.bytes[b]);
  return [x0, y0, Math.max(x1 - x0, 0.7), Math.max(y1 - y0, 0.7)];
}

function drawBoxes(c) {
  const tints = colours(), again = data.origins.indexOf("recomputed"), named = [];
  pen.textAlign = "left";
  for (let b = 0; b < BOXES; b++) {
    const [x, y, w, h] = boxAt(b);
    if (x + w < LEFT || x > LEFT + shape.wide || y + h < TOP || y > TOP + shape.main) continue;
    const colour = tints[group(b)];
    pen.globalAlpha = shown(b) ? 1 : 0.12;
    pen.fillStyle = colour; pen.fillRect(x, y, w, h);
    if (boxes.origin[b] === again && w > 3) { pen.fillStyle = hatching(); pen.fillRect(x, y, w, h); }
    if (w > 6 && h > 4) { pen.strokeStyle = c.back; pen.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1); }
    if (w > 44 && h > 12 && shown(b)) named.push([b, x, y, w, h]);
  }
  pen.globalAlpha = 1;
  if (state.arrows) drawArrows(c);
  const plates = levels(c);
  for (const [b, x, y, w, h] of named) {  // names last, on plates where something is below them
    const middle = Math.min(Math.max(y + h / 2, Math.min(TOP + 7, y + h - 7)), Math.max(TOP + shape.main - 7, y + 7));
    const over = plates.filter((each) => Math.abs(each.at - middle) < 15).map((each) => each.left - 6);
    const from = Math.max(x, LEFT), to = Math.min(x + w, LEFT + shape.wide, ...over);
    const words = to - from > 44 ? shorten(text[boxes.name[b]], to - from - 8) : "";
    if (!words) continue;
    pen.fillStyle = tints[group(b)]; pen.fillRect(from + 3, middle - 6, pen.measureText(words).width + 4, 12);
    pen.fillStyle = inkOn(tints[group(b)]); pen.fillText(words, from + 5, middle + 0.5);
  }
  pen.globalAlpha = 1;
  for (const b of [state.hover, state.box]) {
    if (b < 0) continue;
    const [x, y, w, h] = boxAt(b);
    pen.strokeStyle = c.fore; pen.lineWidth = 2; pen.strokeRect(x, y, w, h); pen.lineWidth = 1;
  }
}

function drawArrows(c) {
  const few = arrows.length < 60;
  for (const [, source, target] of arrows) {
    const mine = [source, target].includes(state.hover) || [source, target].includes(state.box);
    const s = boxAt(source), t = boxAt(target);
    const from = [Math.min(s[0] + s[2], Infinity), s[1] + s[3] / 2], to = [t[0], t[1] + t[3] / 2];
    if (!mine && (Math.abs(to[0] - from[0]) < 6 || Math.max(s[3], t[3]) < (few ? 1 : 3))) continue;
    pen.globalAlpha = mine ? 1 : (shown(source) ? (few ? 0.6 : 0.28) : 0.05);
    pen.strokeStyle = pen.fillStyle = c.fore; pen.lineWidth = mine ? 2 : 1;
    const bend = Math.max((to[0] - from[0]) * 0.4, 12);
    pen.beginPath(); pen.moveTo(...from);
    pen.bezierCurveTo(from[0] + bend, from[1], to[0] - bend, to[1], ...to); pen.stroke();
    pen.beginPath(); pen.moveTo(...to); pen.lineTo(to[0] - 6, to[1] - 3); pen.lineTo(to[0] - 6, to[1] + 3); pen.fill();
  }
  pen.globalAlpha = 1; pen.lineWidth = 1;
}

function label(words, x, y, colour, c, align = "right") {  // on a plate, so that it can be read on boxes
  const width = pen.measureText(words).width;
  const left = align === "right" ? x - width : x;
  pen.globalAlpha = 0.85; pen.fillStyle = c.back; pen.fillRect(left - 4, y - 8, width + 8, 16); pen.globalAlpha = 1;
  pen.fillStyle = colour; pen.textAlign = "left"; pen.fillText(words, left, y);
}

function levels(c) {  // the limit and the peaks, and where their words stand
  const end = shape.width - RIGHT, same = data.measuredPeak === data.peak;
  const all = [[data.peak, (data.recorded ? "most bytes in use: " : same ? "peak, predicted and measured: " : "predicted peak: ") + inBytes(data.peak), c.soft]];
  if (data.measuredPeak !== null && !same) all.push([data.measuredPeak, "measured peak: " + inBytes(data.measuredPeak), c.measured]);
  if (data.limit !== null) all.push([data.limit, "limit: " + inBytes(data.limit), c.limit]);
  const found = [];
  for (const [value, name, colour] of all.sort((a, b) => b[0] - a[0])) {
    const y = py(value), words = y < TOP ? name + " ↑" : name;
    if (y > TOP + shape.main) continue;
    let at = Math.max(y, TOP) + 11;
    while (found.some((other) => Math.abs(other.at - at) < 17)) at += 17;
    found.push({ y, at, words, colour, left: end - 6 - pen.measureText(words).width });
  }
  return found;
}

function drawLevels(c) {  // over the addresses: first lines, then words
  const end = shape.width - RIGHT, found = levels(c);
  for (const { y, colour } of found) if (y >= TOP) rule(LEFT, y, end, y, colour, colour === c.limit ? [7, 4] : [2, 3]);
  for (const { at, words, colour } of found) label(words, end - 6, at, colour, c);
}

function drawLive(c) {  // bytes in use, whatever the addresses
  const base = shape.live + LIVE;
  const top = Math.max(data.peak, ...(data.limit !== null && data.limit < 1.5 * data.peak ? [data.limit] : [])) * 1.04 || 1;
  const at = (n) => base - LIVE * n / top;
  pen.fillStyle = c.soft; pen.textAlign = "right";
  pen.fillText(inBytes(data.peak), LEFT - 7, at(data.peak)); pen.fillText("0 B", LEFT - 7, base - 4);
  label("bytes in use", LEFT, shape.live - 11, c.soft, c, "left");
  const curve = (values, closed) => {
    pen.beginPath();
    if (closed) pen.moveTo(px(xs[0]), base);
    for (let e = 0; e < EVENTS; e++) { pen.lineTo(px(xs[e]), at(values[e])); pen.lineTo(px(xs[e + 1]), at(values[e])); }
    if (closed) pen.lineTo(px(xs[EVENTS]), base);
  };
  clipped(shape.live, LIVE, () => {
    pen.fillStyle = "#4b8bd666"; curve(events.live, true); pen.fill();
    pen.strokeStyle = "#4b8bd6"; curve(events.live, false); pen.stroke();
    if (data.measuredBytes.length) { pen.strokeStyle = c.measured; pen.lineWidth = 1.5; curve(data.measuredBytes, false); pen.stroke(); pen.lineWidth = 1; }
    if (data.limit !== null) rule(LEFT, at(data.limit), shape.width - RIGHT, at(data.limit), c.limit, [7, 4]);
    const e = state.hover >= 0 ? boxes.begin[state.hover] : -1;
    if (e >= 0) rule(px(xs[e]), shape.live, px(xs[e]), base, c.fore, [2, 2]);
  });
  rule(LEFT, base + 0.5, shape.width - RIGHT, base + 0.5, c.line);
}

function drawLanes(c) {
  const right = LEFT + shape.wide;
  const bar = (from, to, row, colour, striped) => {
    const x = Math.max(px(from), LEFT), w = Math.max(Math.min(px(to), right) - x, 0.7);
    if (px(to) < LEFT || x > right) return;
    pen.fillStyle = colour; pen.fillRect(x, shape.lanes + row * LANE + 2, w, LANE - 4);
    if (striped && w > 2) { pen.fillStyle = hatching(); pen.fillRect(x, shape.lanes + row * LANE + 2, w, LANE - 4); }
  };
  let left = right;
  pen.textAlign = "left";
  const seen = new Set(events.kind.filter((kind, e) => xs[e + 1] > xs[e]));
  for (let kind = data.kinds.length - 1; kind >= 0; kind--) {  // what the colours of the first lane mean
    if (!seen.has(kind)) continue;  // it takes no time
    left -= pen.measureText(data.kinds[kind]).width + 24;
    pen.fillStyle = data.kindColours[kind]; pen.fillRect(left, shape.lanes - 13, 9, 9);
    pen.fillStyle = c.soft; pen.fillText(data.kinds[kind], left + 13, shape.lanes - 8);
  }
  pen.fillStyle = c.soft; pen.textAlign = "right";
  [data.recorded ? "events" : "compute", ...data.queues].forEach((name, row) => pen.fillText(shorten(name, LEFT - 10), LEFT - 7, shape.lanes + (row + 0.5) * LANE));
  clipped(shape.lanes, shape.bottom - shape.lanes, () => {
    for (let e = 0, first = 0; e < EVENTS; e++) {  // neighbours of one colour are one bar
      if (e + 1 < EVENTS && events.kind[e + 1] === events.kind[e] && events.again[e + 1] === events.again[e]) continue;
      bar(xs[first], xs[e + 1], 0, data.kindColours[events.kind[e]], events.again[e]);
      first = e + 1;
    }
    for (let k = 0; k < COPIES; k++) {
      const [begin, end] = span(k);
      pen.globalAlpha = copies.box[k] >= 0 && !shown(copies.box[k]) ? 0.15 : 1;
      bar(place(begin), place(end), 1 + copies.queue[k], data.queueColours[copies.queue[k]], false);
    }
    pen.globalAlpha = 1;
  });
  rule(LEFT, shape.bottom + 0.5, right, shape.bottom + 0.5, c.line);
}

// -- what the pointer is on -------------------------------------------------------

function boxUnder(x, y) {
  if (x < LEFT || y < TOP || y > TOP + shape.main) return -1;
  const at = ux(x), byte = uy(y), e = eventAt(at);
  let near = -1;
  for (let b = 0; b < BOXES; b++) {
    if (byte < boxes.offset[b] || byte >= boxes.offset[b] + boxes.bytes[b]) continue;
    if (boxes.begin[b] <= e && e < boxes.end[b]) return b;
    const [left, , width] = boxAt(b);
    if (x >= left - 1 && x <= left + width + 1) near = b;  // narrower than the pointer
  }
  return near;
}

function rowsOf(b) {
  const from = boxes.begin[b], to = boxes.end[b], times = data.clocks[state.clock];
  const rows = [["size", exact(boxes.bytes[b]) + (boxes.requested[b] ? ", of which used " + boxes.requested[b].toLocaleString("en") + " B" : "")]];
  if (data.places) rows.push(["address", hex(boxes.offset[b])]);
  rows.push([ROLE, spoken(data.roles[boxes.role[b]]) + (boxes.origin[b] ? ", " + data.origins[boxes.origin[b]] : "")]);
  for (const [name, column] of [["type", boxes.form], ["op", boxes.op], [LAYER, boxes.layer], ["line", boxes.line]]) {
    const words = name === LAYER ? data.layers[column[b]] : text[column[b]];
    if (words) rows.push([name, words]);
  }
  rows.push([data.clocks.measured && state.clock === "measured" ? "measured" : "time", inTime(times[from]) + " to " + inTime(times[to])]);
  if (from < EVENTS && data.kinds[events.kind[from]] !== "allocate") rows.push(["during", text[events.name[from]] + (to - 1 > from ? " … " + text[events.name[to - 1]] : "")]);
  return rows;
}
function hex(offset) {  // of a resource, whose unused addresses are left out
  let run = [0, 0];
  for (const each of data.runs) if (each[0] <= offset) run = each;
  return "0x" + (BigInt(run[1]) + BigInt(offset - run[0])).toString(16);
}

function aboutEvent(x, y) {  // in the lanes and in the curve
  const row = Math.floor((y - shape.lanes) / LANE), at = ux(x), e = eventAt(at);
  if (x < LEFT || !EVENTS) return null;
  if (row > 0 && y < shape.bottom) {
    for (let k = 0; k < COPIES; k++) {
      const [begin, end] = span(k);
      if (copies.queue[k] === row - 1 && px(place(begin)) <= x + 1 && px(place(end)) >= x - 1)
        return [text[copies.name[k]], [["lane", data.queues[copies.queue[k]]], ["bytes", exact(copies.bytes[k])], ["time", inTime(begin) + " to " + inTime(end)]]];
    }
    return null;
  }
  if (y < shape.live || y > shape.lanes + LANE || at > xs[EVENTS]) return null;
  const times = data.clocks[state.clock], rows = [["does", data.kinds[events.kind[e]] + (events.again[e] ? ", again" : "")]];
  rows.push(["in use", exact(events.live[e])]);
  if (data.measuredBytes.length) rows.push(["measured", exact(data.measuredBytes[e])]);
  for (const [name, words] of [[LAYER, data.layers[events.layer[e]]], ["line", text[events.line[e]]]]) if (words) rows.push([name, words]);
  rows.push(["takes", inTime(times[e + 1] - times[e])]);
  return [text[events.name[e]], rows];
}

function showTip(name, rows, x, y) {
  tip.replaceChildren();
  tip.append(Object.assign(document.createElement("b"), { textContent: name }));
  for (const [key, words] of rows) {
    tip.append(Object.assign(document.createElement("span"), { textContent: key + " " }), words, document.createElement("br"));
  }
  tip.style.display = "block";
  const left = x + 16 + tip.offsetWidth > shape.width ? x - tip.offsetWidth - 12 : x + 16;
  tip.style.left = Math.max(left, 0) + "px";
  tip.style.top = Math.max(Math.min(y + 12, shape.height - tip.offsetHeight - 4), 0) + "px";
}

function say(b) {
  $("status").textContent = b < 0 ? "" : text[boxes.name[b]] + ": " + rowsOf(b).map((row) => row.join(" ")).join("; ");
}
function select(b) { state.box = b; say(b); redraw(); }

// -- moving -----------------------------------------------------------------------

function zoom(axis, factor, at) {
  const [low, high] = axis === "x" ? ["x0", "x1"] : ["y0", "y1"], all = domain();
  const size = Math.min(Math.max((view[high] - view[low]) * factor, (all[high] - all[low]) * 1e-6), all[high] - all[low]);
  const part = (at - view[low]) / (view[high] - view[low]);
  view[low] = at - part * size; view[high] = view[low] + size;
  keepInside();
}
function keepInside() {
  const all = domain();
  for (const [low, high] of [["x0", "x1"], ["y0", "y1"]]) {
    const shift = Math.max(all[low] - view[low], 0) || Math.min(all[high] - view[high], 0);
    view[low] += shift; view[high] += shift;
  }
  redraw();
}
function move(dx, dy) {
  const x = dx * (view.x1 - view.x0), y = dy * (view.y1 - view.y0);
  view.x0 += x; view.x1 += x; view.y0 += y; view.y1 += y; keepInside();
}
function showAll() { Object.assign(view, domain()); redraw(); }
function showMoving() {  // without the state, which lies first and stays
  let end = 0;
  for (let b = 0; b < BOXES && boxes.offset[b] <= end; b++) if (boxes.begin[b] === 0 && boxes.end[b] === EVENTS) end = Math.max(end, boxes.offset[b] + boxes.bytes[b]);
  Object.assign(view, domain()); view.y0 = end < view.y1 ? end : 0; redraw();
}
function zoomTo(b) {
  const all = domain(), x = (xs[boxes.end[b]] - xs[boxes.begin[b]]) || all.x1 / 1e4, y = boxes.bytes[b] || 64;
  const wide = Math.min(x * 1.6, all.x1), high = Math.min(y * 4, all.y1);
  view.x0 = xs[boxes.begin[b]] + x / 2 - wide / 2; view.x1 = view.x0 + wide;
  view.y0 = boxes.offset[b] + y / 2 - high / 2; view.y1 = view.y0 + high;
  keepInside();
}
function reveal(b) {  // moves only if it is out of sight
  const [x, y, w, h] = boxAt(b);
  if (x + w < LEFT || x > LEFT + shape.wide || y + h < TOP || y > TOP + shape.main) zoomTo(b);
}
function step(by) {  // to the next box, among the shown
  for (let n = 0, b = state.box; n < BOXES; n++) {
    b = (b + by + BOXES) % BOXES;
    if (shown(b)) { select(b); reveal(b); return; }
  }
}
function keepEvents(change) {  // the same events stay in view when the axis changes
  const e0 = eventAt(view.x0), e1 = eventAt(view.x1), whole = view.x1 - view.x0 >= domain().x1 * 0.999;
  change(); setAxis();
  const all = domain();
  if (whole) { view.x0 = all.x0; view.x1 = all.x1; } else { view.x0 = xs[e0]; view.x1 = Math.max(xs[e1 + 1], view.x0 + all.x1 * 1e-6); }
  keepInside();
}

// -- controls ---------------------------------------------------------------------

function legend() {
  const atPeak = new Map(), most = events.live.indexOf(events.live.reduce((a, b) => Math.max(a, b), 0));
  for (let b = 0; b < BOXES; b++) atPeak.set(group(b), (atPeak.get(group(b)) || 0) + (boxes.begin[b] <= most && most < boxes.end[b] ? boxes.bytes[b] : 0));
  const names = state.by === "role" ? data.roles.map(spoken) : data.layers, tints = colours();
  const order = [...atPeak].sort((a, b) => b[1] - a[1]), rest = order.splice(12);
  $("keys").replaceChildren();
  for (const [key, nbytes] of order) {
    const button = document.createElement("button"), swatch = document.createElement("i"), size = document.createElement("small");
    swatch.style.background = tints[key];
    const words = names[key] || "(no " + LAYER + ")";
    size.textContent = " " + inBytes(nbytes);
    button.append(swatch, words.length > 34 ? words.slice(0, 16) + "…" + words.slice(-16) : words, size);
    button.title = words + ": " + exact(nbytes) + " at the peak";
    button.setAttribute("aria-pressed", String(state.only === key));
    button.onclick = () => { state.only = state.only === key ? -1 : key; legend(); redraw(); };
    $("keys").append(button);
  }
  const words = rest.length ? rest.length + " more: " + inBytes(rest.reduce((sum, each) => sum + each[1], 0)) + "; " : "";
  const note = Object.assign(document.createElement("small"), { textContent: words + "bytes at the peak" + (data.origins.includes("recomputed") ? "; striped: recomputed" : "") });
  $("keys").append(note);
}

function search() {
  const query = $("search").value.trim().toLowerCase();
  found = null;
  if (query) {
    const hit = text.map((words) => words.toLowerCase().includes(query)), layer = data.layers.map((words) => words.toLowerCase().includes(query));
    const role = data.roles.map((words) => words.toLowerCase().includes(query));
    found = new Set();
    for (let b = 0; b < BOXES; b++) if (hit[boxes.name[b]] || hit[boxes.op[b]] || hit[boxes.line[b]] || layer[boxes.layer[b]] || role[boxes.role[b]]) found.add(b);
  }
  $("found").textContent = found ? found.size + (found.size === 1 ? " box" : " boxes") : "";
  redraw();
}

const set = {
  by: (value) => { state.by = $("by").value = value; state.only = -1; legend(); redraw(); },
  axis: (value) => keepEvents(() => { state.axis = $("axis").value = value; }),
  clock: (value) => keepEvents(() => { state.clock = $("clock").value = value; }),
  arrows: (value) => { state.arrows = $("arrows").checked = value; redraw(); },
};
const middle = () => state.box >= 0 ? xs[boxes.begin[state.box]] : (view.x0 + view.x1) / 2;
const keys = {
  "+": () => zoom("x", 0.6, middle()), "=": () => zoom("x", 0.6, middle()), "-": () => zoom("x", 1 / 0.6, middle()), "_": () => zoom("y", 1 / 0.6, (view.y0 + view.y1) / 2),
  "*": () => zoom("y", 0.6, (view.y0 + view.y1) / 2), "0": showAll, "Home": showAll,
  "ArrowLeft": () => move(-0.15, 0), "ArrowRight": () => move(0.15, 0), "ArrowUp": () => move(0, 0.15), "ArrowDown": () => move(0, -0.15),
  ",": () => step(-1), ".": () => step(1), "n": () => found && step(1), "N": () => found && step(-1),
  "/": () => $("search").focus(), "Enter": () => state.box >= 0 && zoomTo(state.box),
  "s": showMoving, "c": () => set.by(state.by === "role" ? "layer" : "role"), "x": () => set.axis(state.axis === "time" ? "ops" : "time"),
  "m": () => data.clocks.measured && set.clock(state.clock === "planned" ? "measured" : "planned"),
  "a": () => set.arrows(!state.arrows), "Escape": () => { state.only = -1; $("search").value = ""; search(); legend(); select(-1); },
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.id === "search") {
    if (event.key === "Enter") { step(event.shiftKey ? -1 : 1); event.preventDefault(); }
    if (event.key === "Escape") { keys.Escape(); canvas.focus(); }
    return;
  }
  if (/SELECT|BUTTON|SUMMARY|INPUT/.test(event.target.tagName) && /Enter|Arrow|Home| /.test(event.key)) return;
  if (keys[event.key]) { keys[event.key](); event.preventDefault(); }
});

let drag = null;
canvas.addEventListener("pointerdown", (event) => { drag = { x: event.offsetX, y: event.offsetY, far: 0 }; canvas.setPointerCapture(event.pointerId); });
canvas.addEventListener("pointermove", (event) => {
  const { offsetX: x, offsetY: y } = event;
  if (drag) {
    drag.far += Math.abs(x - drag.x) + Math.abs(y - drag.y);
    if (drag.far > 3) { tip.style.display = "none"; move((drag.x - x) / shape.wide, y < shape.live ? (y - drag.y) / shape.main : 0); drag.x = x; drag.y = y; }
    return;
  }
  const b = boxUnder(x, y), other = b < 0 ? aboutEvent(x, y) : null;
  if (b !== state.hover) { state.hover = b; redraw(); }
  if (b >= 0) showTip(text[boxes.name[b]], rowsOf(b), x, y); else if (other) showTip(...other, x, y); else tip.style.display = "none";
});
canvas.addEventListener("pointerup", (event) => { if (drag && drag.far <= 3) select(boxUnder(event.offsetX, event.offsetY)); drag = null; });
canvas.addEventListener("pointercancel", () => { drag = null; });
canvas.addEventListener("pointerleave", () => { tip.style.display = "none"; state.hover = -1; redraw(); });
canvas.addEventListener("dblclick", (event) => { const b = boxUnder(event.offsetX, event.offsetY); if (b >= 0) zoomTo(b); });
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  const factor = Math.exp(Math.max(-1, Math.min(1, (event.deltaY || event.deltaX) / 240)));
  if (event.shiftKey || event.offsetX < LEFT) zoom("y", factor, uy(Math.min(event.offsetY, TOP + shape.main)));
  else zoom("x", factor, ux(Math.max(event.offsetX, LEFT)));
}, { passive: false });

for (const name of ["by", "axis", "clock"]) $(name).onchange = () => set[name]($(name).value);
$("arrows").onchange = () => set.arrows($("arrows").checked);
$("search").oninput = search;
$("in").onclick = keys["+"]; $("out").onclick = keys["-"]; $("all").onclick = showAll; $("moving").onclick = showMoving;

function start() {
  $("title").textContent = data.title;
  for (const [name, words] of data.facts) {
    const row = document.createElement("div");
    row.append(Object.assign(document.createElement("dt"), { textContent: name }), Object.assign(document.createElement("dd"), { textContent: words }));
    $("facts").append(row);
  }
  $("text").textContent = data.asText;
  canvas.setAttribute("aria-label", data.title + ": addresses over time. " + data.facts.map((fact) => fact.join(" ")).join("; "));
  $("clockLabel").hidden = !data.clocks.measured;
  $("clockLabel").style.display = data.clocks.measured ? "" : "none";
  $("moving").hidden = data.recorded;
  [...$("by").options].forEach((option, number) => { option.textContent = [ROLE, LAYER][number]; });
  if (data.recorded) $("search").placeholder = "holder, line";
  $("arrowsLabel").style.display = arrows.length ? "" : "none";
  if (data.clocks.measured) state.clock = $("clock").value = "measured";
  // The hash chooses the first view, such as #by=layer&axis=ops&search=conv1.
  const asked = new URLSearchParams(location.hash.slice(1));
  for (const name of ["by", "axis", "clock"]) if (asked.has(name) && [...$(name).options].some((option) => option.value === asked.get(name))) state[name] = $(name).value = asked.get(name);
  if (!data.clocks[state.clock]) state.clock = "planned";
  if (asked.has("search")) $("search").value = asked.get("search");
  setAxis(); legend(); layOut(); showAll(); search();
}
new ResizeObserver(redraw).observe($("plot"));
addEventListener("resize", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
const forPrint = (on) => { printing = on; if (on) document.documentElement.dataset.theme = "light"; else delete document.documentElement.dataset.theme; draw(); };
addEventListener("beforeprint", () => forPrint(true));
addEventListener("afterprint", () => forPrint(false));
start();
