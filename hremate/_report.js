"use strict";
(() => {
const D = JSON.parse(document.getElementById("data").textContent);
const KINDS = ["Kept", "Recomputed", "Backward", "Running op"];
const COLORS = ["--kept", "--again", "--back", "--running"];
const CHART_HEIGHT = 390, PAIR_HEIGHT = 235, PAGE_ROWS = 20, TOP_TENSORS = 10;
const $ = (id) => document.getElementById(id);

// -- text ----------------------------------------------------------------------------------------

function el(tag, cls, ...children) {
  const node = document.createElement(tag);
  if (cls) node.className = cls;
  for (const child of children) node.append(child);  // strings become text, never markup
  return node;
}
const UNITS = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];
function bytes(n) {
  for (const [unit, scale] of UNITS) if (n >= scale) return (n / scale).toFixed(2) + " " + unit;
  return n + " B";
}
const TIMES = [["s", 1e6], ["ms", 1e3], ["µs", 1], ["ns", 1e-3]];
function time(t) {
  const us = D.graph.microseconds;
  if (us === null) return number(t, 7) + (D.graph.time_unit ? " " + D.graph.time_unit : "");
  if (t === 0) return "0 " + D.graph.time_unit.replace("us", "µs");
  for (const [unit, scale] of TIMES) if (t * us >= scale) return number(t * us / scale) + " " + unit;
  return number(t * us / 1e-3) + " ns";
}
const number = (x, digits = 4) => Number(x.toPrecision(digits)).toLocaleString("en-US", {maximumFractionDigits: 12});
const count = (n) => n.toLocaleString("en-US");
const percent = (x, digits = 2) => (100 * x).toFixed(digits) + "%";
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// -- schedules -----------------------------------------------------------------------------------

for (const s of D.schedules) {
  s.start = new Float64Array(s.order.length + 1);
  s.runs = new Int32Array(D.ops.name.length);
  s.run = new Int32Array(s.order.length);
  s.order.forEach((op, i) => {
    s.start[i + 1] = s.start[i] + D.ops.time[op];
    s.run[i] = ++s.runs[op];
  });
}
const canTime = D.schedules.some((s) => s.start[s.order.length] > 0);
const view = {axis: canTime ? "time" : "step", lo: 0, hi: 1};
let shown = [];          // the schedules drawn, one or two
let charts = [];
let cursor = null;       // {schedule, step}
let held = false;        // whether the cursor stays when the pointer leaves
let picked = null;       // an op marked in the charts

const edge = (s, i) => view.axis === "time" ? s.start[i] : i;
const extent = () => Math.max(...shown.map((s) => edge(s, s.order.length)));

/** The last step that begins at or before `v`; -1 outside the schedule. */
function stepAt(s, v) {
  const n = s.order.length;
  if (v < 0 || v > edge(s, n)) return -1;
  let a = 0, b = n;
  while (b - a > 1) {
    const m = (a + b) >> 1;
    if (edge(s, m) <= v) a = m; else b = m;
  }
  return a;
}

function ticks(lo, hi, n) {
  const raw = (hi - lo) / n;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((k) => k * power >= raw) * power;
  const result = [];
  for (let v = Math.ceil(lo / step) * step; v <= hi + step * 1e-9; v += step) result.push(v);
  return {values: result, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9))};
}

/** A canvas of the right number of device pixels, cleared; drawing is in CSS pixels. */
function prepared(canvas, height) {
  const ratio = window.devicePixelRatio || 1, width = canvas.parentElement.clientWidth;
  canvas.style.height = height + "px";
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const g = canvas.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, height);
  g.font = "11.5px system-ui, sans-serif";
  return [g, width];
}

/**
 * Calls `visit(x0, x1, first, last, highest)` for runs of pixel columns between lo and hi that show the same
 * steps first..last, of which `highest` has the most memory.
 */
function columns(s, lo, hi, left, width, visit) {
  const n = s.order.length, pixels = Math.max(1, Math.round(width)), end = edge(s, n);
  let i = stepAt(s, Math.max(lo, 0)), from = 0, last = null;
  if (i < 0) return;
  for (let x = 0; x < pixels; x++) {
    if (lo + (hi - lo) * x / pixels >= end) {
      if (last) visit(left + from, left + x, ...last);
      return;
    }
    const right = lo + (hi - lo) * (x + 1) / pixels;
    let j = i, highest = i;
    while (j + 1 < n && edge(s, j + 1) < right) if (s.memory[++j] > s.memory[highest]) highest = j;
    if (last && (last[0] !== i || last[1] !== j)) {
      visit(left + from, left + x, ...last);
      from = x;
    }
    last = [i, j, highest];
    i = j + 1 < n && edge(s, j + 1) <= right ? j + 1 : j;
  }
  visit(left + from, left + pixels, ...last);
}

// -- charts --------------------------------------------------------------------------------------

class Chart {
  constructor(schedule, label) {
    this.s = schedule;
    this.canvas = el("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-label", "Memory over time of " + schedule.label + "; arrow keys move by steps");
    this.root = el("div", "chart");
    if (label) this.root.append(el("p", "", schedule.label));
    this.root.append(this.canvas);
    this.listen();
  }

  get box() {
    return {left: 62, top: 12, right: this.width - 10, bottom: this.height - 42};
  }

  x(v) {
    const b = this.box;
    return b.left + (v - view.lo) / (view.hi - view.lo) * (b.right - b.left);
  }

  value(x) {
    const b = this.box;
    return view.lo + (x - b.left) / (b.right - b.left) * (view.hi - view.lo);
  }

  draw(height) {
    const [g, width] = prepared(this.canvas, height), s = this.s;
    Object.assign(this, {width, height});
    const b = this.box, ink = color("--ink"), muted = color("--muted"), line = color("--line");
    const top = 1.08 * Math.max(...shown.map((t) => Math.max(t.peak, t.budget ?? 0)), 1);
    const y = (m) => b.bottom - m / top * (b.bottom - b.top);

    // memory axis
    const [unit, scale] = UNITS.find(([, k]) => top >= k) ?? ["B", 1];
    g.textBaseline = "middle";
    g.textAlign = "right";
    const yTicks = ticks(0, top / scale, (b.bottom - b.top) / 42);
    for (const v of yTicks.values) {
      g.fillStyle = line;
      g.fillRect(b.left, Math.round(y(v * scale)), b.right - b.left, 1);
      g.fillStyle = muted;
      g.fillText(v.toFixed(yTicks.digits) + (v === yTicks.values.at(-1) ? " " + unit : ""), b.left - 7, y(v * scale));
    }

    // memory, and what runs
    const fills = COLORS.map(color);
    columns(s, view.lo, view.hi, b.left, b.right - b.left, (x0, x1, first, last, highest) => {
      let below = b.bottom, sum = 0;
      s.bands.forEach((band, k) => {
        if (!band[highest]) return;
        const above = y(sum += band[highest]);
        g.fillStyle = fills[k];
        g.fillRect(x0, above, x1 - x0, below - above);
        below = above;
      });
      const weight = [0, 0, 0];
      for (let i = first; i <= last; i++) weight[s.kind[i]] += edge(s, i + 1) - edge(s, i) || 1e-12;
      const total = weight[0] + weight[1] + weight[2];
      let from = b.bottom + 5;
      weight.forEach((w, k) => {
        g.fillStyle = fills[k];
        g.fillRect(x0, from, x1 - x0, 9 * w / total);
        from += 9 * w / total;
      });
    });
    g.fillStyle = muted;
    g.fillText("runs", b.left - 7, b.bottom + 10);

    // time axis
    g.textBaseline = "top";
    const us = view.axis === "time" ? D.graph.microseconds : null;
    const [xUnit, xScale] = us === null ? [view.axis === "time" ? D.graph.time_unit : "", 1] :
      ((found) => [found[0], found[1] / us])(TIMES.find(([, k]) => view.hi * us >= k) ?? TIMES[3]);
    const xTicks = ticks(view.lo / xScale, view.hi / xScale, (b.right - b.left) / 90);
    for (const v of xTicks.values) {
      const at = this.x(v * xScale);
      g.fillStyle = line;
      g.fillRect(Math.round(at), b.bottom + 15, 1, 4);
      g.fillStyle = muted;
      g.textAlign = at > b.right - 24 ? "right" : at < b.left + 12 ? "left" : "center";
      const value = v.toLocaleString("en-US", {minimumFractionDigits: xTicks.digits, maximumFractionDigits: xTicks.digits});
      g.fillText(view.axis === "step" ? value : value + " " + xUnit, at, b.bottom + 22);
    }

    // the op picked, budget, peak, cursor
    if (picked !== null) {
      g.fillStyle = color("--select");
      g.globalAlpha = .8;
      s.order.forEach((op, i) => {
        if (op !== picked) return;
        const x0 = Math.max(this.x(edge(s, i)), b.left), x1 = Math.min(this.x(edge(s, i + 1)), b.right);
        if (x1 < b.left || x0 > b.right) return;
        g.fillRect(x0 - 1, b.top, Math.max(x1 - x0, 0) + 2, b.bottom + 15 - b.top);
      });
      g.globalAlpha = 1;
    }
    if (s.budget !== null) {
      g.strokeStyle = color("--budget");
      g.setLineDash([6, 4]);
      g.lineWidth = 1.3;
      g.beginPath();
      g.moveTo(b.left, Math.round(y(s.budget)) + .5);
      g.lineTo(b.right, Math.round(y(s.budget)) + .5);
      g.stroke();
      g.setLineDash([]);
      this.tag(g, "budget " + bytes(s.budget), b.right, y(s.budget) - 9, "right");
    }
    const peakX = this.x((edge(s, s.peak_step) + edge(s, s.peak_step + 1)) / 2);
    if (peakX >= b.left && peakX <= b.right) {
      g.fillStyle = ink;
      g.beginPath();
      g.moveTo(peakX, y(s.peak) - 1);
      g.lineTo(peakX - 5, y(s.peak) - 9);
      g.lineTo(peakX + 5, y(s.peak) - 9);
      g.fill();
    }
    if (cursor) {
      const i = cursor.schedule === s ? cursor.step
        : stepAt(s, (edge(cursor.schedule, cursor.step) + edge(cursor.schedule, cursor.step + 1)) / 2);
      if (i >= 0) {
        const x0 = Math.max(this.x(edge(s, i)), b.left), x1 = Math.min(this.x(edge(s, i + 1)), b.right);
        if (x1 >= b.left && x0 <= b.right) {
          g.fillStyle = ink;
          g.globalAlpha = .16;
          g.fillRect(x0, b.top, Math.max(x1 - x0, 1), b.bottom - b.top);
          g.globalAlpha = cursor.schedule === s ? 1 : .5;
          g.fillRect(Math.round((x0 + x1) / 2), b.top, 1, b.bottom + 14 - b.top);
          g.globalAlpha = 1;
          if (cursor.schedule === s) {
            const middle = (x0 + x1) / 2, right = middle > (b.left + b.right) / 2;
            this.tag(g, bytes(s.memory[i]), middle + (right ? -6 : 6), Math.max(y(s.memory[i]) - 10, b.top + 8),
              right ? "right" : "left");
          }
        }
      }
    }
    Object.assign(this.canvas.dataset, {left: b.left, right: b.right, top: b.top, bottom: b.bottom});
  }

  /** A short text on a patch of the background, so that it can be read on any colour. */
  tag(g, text, x, y, align) {
    const w = g.measureText(text).width + 8;
    const left = align === "right" ? x - w : x;
    g.globalAlpha = .86;
    g.fillStyle = color("--panel");
    g.fillRect(left, y - 8, w, 16);
    g.globalAlpha = 1;
    g.fillStyle = color("--ink");
    g.textAlign = "left";
    g.textBaseline = "middle";
    g.fillText(text, left + 4, y);
  }

  listen() {
    const c = this.canvas;
    let drag = null;
    c.addEventListener("pointerdown", (e) => {
      drag = {x: e.offsetX, lo: view.lo, hi: view.hi, moved: false};
      c.setPointerCapture(e.pointerId);
    });
    c.addEventListener("pointermove", (e) => {
      if (drag && (drag.moved || Math.abs(e.offsetX - drag.x) > 3)) {
        drag.moved = true;
        const b = this.box, by = (drag.x - e.offsetX) / (b.right - b.left) * (drag.hi - drag.lo);
        look(drag.lo + by, drag.hi + by);
      } else if (!held) {
        this.point(e.offsetX);
      }
    });
    c.addEventListener("pointerup", (e) => {
      if (drag && !drag.moved) {
        held = !(held && cursor && cursor.schedule === this.s && this.step(e.offsetX) === cursor.step);
        this.point(e.offsetX);
      }
      drag = null;
    });
    c.addEventListener("pointercancel", () => { drag = null; });
    c.addEventListener("pointerleave", () => { if (!held && !drag) setCursor(null); });
    c.addEventListener("dblclick", (e) => zoom(.4, this.value(e.offsetX)));
    c.addEventListener("wheel", (e) => {
      if (e.ctrlKey || e.metaKey) {
        zoom(Math.exp(Math.sign(e.deltaY) * .22), this.value(e.offsetX));
      } else if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) {
        const by = e.deltaX / c.clientWidth * (view.hi - view.lo);
        look(view.lo + by, view.hi + by);
      } else {
        return;
      }
      e.preventDefault();
    }, {passive: false});
    c.addEventListener("keydown", (e) => { if (this.key(e)) e.preventDefault(); });
  }

  step(x) {
    const b = this.box;
    return stepAt(this.s, this.value(Math.min(Math.max(x, b.left), b.right)));
  }

  point(x) {
    const i = this.step(x);
    setCursor(i < 0 ? null : {schedule: this.s, step: i});
  }

  key(e) {
    if (e.altKey || e.ctrlKey || e.metaKey) return false;
    const s = this.s, n = s.order.length, far = e.shiftKey ? 10 : 1;
    const at = cursor && cursor.schedule === s ? cursor.step : -1;
    const middle = at >= 0 ? (edge(s, at) + edge(s, at + 1)) / 2 : (view.lo + view.hi) / 2;
    const go = (i) => hold(s, Math.min(Math.max(i, 0), n - 1));
    switch (e.key) {
      case "ArrowRight": go(at < 0 ? stepAt(s, view.lo) : at + far); break;
      case "ArrowLeft": go(at < 0 ? stepAt(s, view.lo) : at - far); break;
      case "Home": go(0); break;
      case "End": go(n - 1); break;
      case "+": case "=": zoom(.5, middle); break;
      case "-": case "_": zoom(2, middle); break;
      case "0": look(0, extent()); break;
      case "p": case "P": go(s.peak_step); break;
      case "r": case "R": {
        let i = at + 1;
        while (i < n && s.kind[i] !== 1) i++;
        if (i === n) i = s.kind.indexOf(1);
        if (i >= 0) go(i);
        break;
      }
      case "Escape": held = false; picked = null; setCursor(null); markPicked(); break;
      default: return false;
    }
    return true;
  }
}

function drawOverview() {
  const [g, width] = prepared($("overview"), 44), s = shown[0];
  const left = 62, right = width - 10, hi = extent(), scale = 36 / Math.max(s.peak, 1);
  const fills = [color("--kept"), color("--again"), color("--back")];
  columns(s, 0, hi, left, right - left, (x0, x1, first, last, highest) => {
    g.fillStyle = fills[s.kind[highest]];
    g.globalAlpha = .75;
    g.fillRect(x0, 42 - s.memory[highest] * scale, x1 - x0, s.memory[highest] * scale);
  });
  const a = left + view.lo / hi * (right - left), b = left + view.hi / hi * (right - left);
  g.globalAlpha = .72;
  g.fillStyle = color("--panel");
  g.fillRect(left, 0, a - left, 44);
  g.fillRect(b, 0, right - b, 44);
  g.globalAlpha = 1;
  g.strokeStyle = color("--muted");
  g.lineWidth = 1;
  g.strokeRect(Math.round(a) + .5, 1.5, Math.max(Math.round(b - a) - 1, 2), 41);
}

function listenToOverview() {
  const c = $("overview");
  let from = null;
  const value = (x) => Math.min(Math.max((x - 62) / (c.clientWidth - 72), 0), 1) * extent();
  c.addEventListener("pointerdown", (e) => {
    c.setPointerCapture(e.pointerId);
    const v = value(e.offsetX), whole = view.hi - view.lo > .98 * extent();
    const inside = v >= view.lo && v <= view.hi && !whole;
    from = {v, lo: view.lo, hi: view.hi, inside};
  });
  c.addEventListener("pointermove", (e) => {
    if (!from) return;
    const v = value(e.offsetX);
    if (from.inside) look(from.lo + v - from.v, from.hi + v - from.v);
    else if (Math.abs(v - from.v) > .004 * extent()) look(Math.min(v, from.v), Math.max(v, from.v));
  });
  c.addEventListener("pointerup", () => { from = null; });
  c.addEventListener("pointercancel", () => { from = null; });
}

let asked = false;
function redraw() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    for (const chart of charts) chart.draw(charts.length > 1 ? PAIR_HEIGHT : CHART_HEIGHT);
    drawOverview();
  });
}

/** Show `lo` to `hi`, as far as the schedules reach, at least about two steps. */
function look(lo, hi) {
  const whole = extent();
  const least = view.axis === "step" ? 4 : whole / Math.max(...shown.map((s) => s.order.length)) / 4;
  const span = Math.min(Math.max(hi - lo, Math.min(least, whole)), whole);
  const middle = (lo + hi) / 2;
  view.lo = Math.min(Math.max(hi - lo === span ? lo : middle - span / 2, 0), whole - span);
  view.hi = view.lo + span;
  redraw();
}

const zoom = (factor, v) => look(v - (v - view.lo) * factor, v + (view.hi - v) * factor);

/** Hold a step under the cursor, and scroll it into the view. */
function hold(s, i) {
  held = true;
  const a = edge(s, i), b = edge(s, i + 1), span = view.hi - view.lo;
  if (a < view.lo || b > view.hi) look((a + b) / 2 - span / 2, (a + b) / 2 + span / 2);
  setCursor({schedule: s, step: i});
}

function setCursor(next) {
  if (next?.schedule === cursor?.schedule && next?.step === cursor?.step) return redraw();
  cursor = next;
  redraw();
  describe();
}

// -- the step under the cursor -------------------------------------------------------------------

function describe() {
  const s = cursor ? cursor.schedule : shown[0], i = cursor ? cursor.step : s.peak_step;
  const op = s.order[i], kind = s.kind[i];
  const chip = el("span", "chip", ["First run", "Recomputed", "Backward"][kind]);
  chip.style.color = color(COLORS[kind]);
  const intro = el("p", "muted", cursor ? "" : "At the peak");
  intro.style.margin = "0 0 4px";
  const list = el("dl");
  const row = (name, text, cls) => { if (text) list.append(el("dt", "", name), el("dd", cls, text)); };
  if (shown.length > 1) row("Schedule", s.label);
  row("Step", count(i) + " of " + count(s.order.length));
  row("Op type", D.types[D.ops.type[op]], "name");
  row("Scope", D.scopes[D.ops.scope[op]], "name");
  row("Phase", ["forward", "loss", "backward"][D.ops.phase[op]]);
  row("Starts", time(s.start[i]));
  row("Takes", time(D.ops.time[op]));
  row("Memory", bytes(s.memory[i]) + (s.budget ? ", " + percent(s.memory[i] / s.budget, 1) + " of budget" : ""));
  if (D.ops.workspace[op]) row("Workspace", bytes(D.ops.workspace[op]));
  const stack = el("div", "stack");
  s.bands.forEach((band, k) => {
    const part = el("i");
    part.style.cssText = "width:" + 100 * band[i] / Math.max(s.memory[i], 1) + "%;background:" + color(COLORS[k]);
    part.title = KINDS[k] + " " + bytes(band[i]);
    stack.append(part);
  });

  const live = [];
  let total = 0;
  for (let c = 0; c < s.copy.length; c++) {
    if (s.birth[c] > i) break;  // copies are listed by birth
    if (s.death[c] >= i) {
      live.push(c);
      total += D.tensors.size[s.copy[c]];
    }
  }
  live.sort((a, b) => D.tensors.size[s.copy[b]] - D.tensors.size[s.copy[a]] || a - b);
  const table = el("table", "live"), body = el("tbody");
  for (const c of live.slice(0, TOP_TENSORS)) {
    const size = D.tensors.size[s.copy[c]], dot = el("i", "dot");
    dot.style.background = color(COLORS[s.kind[s.birth[c]]]);
    const maker = D.ops.name[s.order[s.birth[c]]];
    const name = el("td", "name", dot, D.tensors.name[s.copy[c]], el("span", "muted", "  " + maker));
    name.title = D.tensors.name[s.copy[c]] + ", made at step " + s.birth[c] + " by " + maker;
    const meter = el("span", "meter"), fill = el("i");
    fill.style.cssText = "width:" + 100 * size / Math.max(D.tensors.size[s.copy[live[0]]], 1) + "%;background:"
      + dot.style.background;
    meter.append(fill);
    body.append(el("tr", "", name, el("td", "num", bytes(size), meter)));
  }
  table.append(body);
  const title = el("h3", "name", D.ops.name[op]);
  title.id = "detail-op";
  const listed = live.length > TOP_TENSORS ? "largest " + TOP_TENSORS + " of " + count(live.length) : count(live.length);
  $("detail").replaceChildren(
    intro, title, el("p", "", chip, el("span", "muted", s.runs[op] > 1 ? "run " + s.run[i] + " of " + s.runs[op] : "runs once")),
    list, stack, el("h4", "", "Live tensors", el("span", "muted", listed + " · " + bytes(total))), table,
  );
  $("detail").dataset.step = i;
}

// -- tables --------------------------------------------------------------------------------------

function headed(table, heads) {
  const row = el("tr");
  for (const [text, num] of heads) {
    const cell = el("th", num ? "num" : "", text);
    cell.scope = "col";
    row.append(cell);
  }
  const body = el("tbody");
  table.replaceChildren(el("thead", "", row), body);
  return body;
}

function meter(share, mark, cls) {
  const root = el("span", "meter"), fill = el("i", cls ?? "");
  fill.style.width = 100 * Math.min(share, 1) + "%";
  root.append(fill);
  if (mark !== undefined && mark !== null && mark <= 1) {
    const line = el("b");
    line.style.left = "calc(" + 100 * mark + "% - 1px)";
    root.append(line);
  }
  return root;
}

function figures() {
  const base = D.graph.base_peak, best = Math.min(...D.schedules.map((s) => s.time));
  const quiet = (text) => el("span", "muted", "  " + text);
  const columnsOf = [
    ["Budget", (s) => s.budget === null ? ["–"] : [bytes(s.budget), base ? quiet(percent(s.budget / base, 1)) : ""]],
    ["Peak", (s) => {
      const scale = Math.max(base, s.peak, s.budget ?? 0, 1);
      return [bytes(s.peak), meter(s.peak / scale, s.budget === null ? null : s.budget / scale)];
    }],
    ["Time", (s) => [time(s.time)]],
    ["Overhead", (s) => [el(s.time === best ? "b" : "span", "", percent(s.overhead, 3))]],
    ["Lower bound", (s) => s.lower_bound === null || !D.graph.base_time ? ["–"]
      : [percent(Math.max(s.lower_bound / D.graph.base_time - 1, 0), 3)], (s) => s.lower_bound],
    ["Recomputed steps", (s) => [count(s.recomputes), quiet("of " + count(s.order.length))]],
    ["Found in", (s) => [s.wall_time === null ? "–" : s.wall_time.toFixed(1) + " s"], (s) => s.wall_time],
  ].filter(([, , known]) => !known || D.schedules.some((s) => known(s) !== null));
  const body = headed($("figures"), [["Schedule"], ...columnsOf.map(([head]) => [head, 1])]);
  for (const s of D.schedules) {
    body.append(el("tr", "", el("td", "", el("b", "", s.label), s.status ? quiet(s.status) : ""),
      ...columnsOf.map(([, cells]) => el("td", "num", ...cells(s)))));
  }
}

/** Rows by page below a header; `rows` are built when shown, so that the page holds few nodes. */
function paged(prefix, perPage, build, told) {
  const state = {page: 0, rows: []};
  const show = () => {
    const pages = Math.max(1, Math.ceil(state.rows.length / perPage));
    state.page = Math.min(state.page, pages - 1);
    const from = state.page * perPage, part = state.rows.slice(from, from + perPage);
    build(part);
    $(prefix + "-back").disabled = state.page === 0;
    $(prefix + "-next").disabled = state.page === pages - 1;
    $(prefix + "-back").parentElement.hidden = pages === 1;
    $(prefix + "-count").textContent = told(state.rows, pages > 1 ? ` · ${from + 1}–${from + part.length}` : "");
  };
  $(prefix + "-back").addEventListener("click", () => { state.page--; show(); });
  $(prefix + "-next").addEventListener("click", () => { state.page++; show(); });
  return (rows) => { state.rows = rows; state.page = 0; show(); };
}

/** The columns of text that say something about this graph. */
const texts = [["Type", (op) => D.types[D.ops.type[op]]], ["Scope", (op) => D.scopes[D.ops.scope[op]]]]
  .filter(([, text]) => D.ops.name.some((_, op) => text(op)));
const sorting = {key: 1, down: true};
const showAgain = paged("again", PAGE_ROWS, (rows) => {
  const heads = [["Op"], ...texts.map(([head]) => [head])], before = heads.length;
  for (const s of shown) {
    const of = shown.length > 1 ? ", " + s.label : "";
    heads.push(["Runs again" + of, 1], ["Cost" + of, 1], ["Of base time", 1]);
  }
  const body = headed($("again"), heads);
  [...$("again").querySelectorAll("th")].forEach((cell, k) => {
    if (k < before || (k - before) % 3 === 2) return;
    const key = k - before, button = el("button", "", cell.textContent);
    button.type = "button";
    button.addEventListener("click", () => {
      sorting.down = sorting.key === key ? !sorting.down : true;
      sorting.key = key;
      fillAgain();
      $("again").querySelectorAll("th")[k].querySelector("button").focus();
    });
    cell.replaceChildren(button);
    if (sorting.key === key) cell.setAttribute("aria-sort", sorting.down ? "descending" : "ascending");
  });
  const most = Math.max(...shown.flatMap((s) => rows.map((op) => (s.runs[op] - 1) * D.ops.time[op])), 1e-300);
  for (const op of rows) {
    const row = el("tr", "pick" + (op === picked ? " picked" : ""), el("td", "name", D.ops.name[op]),
      ...texts.map(([, text]) => el("td", "name", text(op) || "–")));
    for (const s of shown) {
      const again = s.runs[op] - 1, cost = again * D.ops.time[op];
      row.append(el("td", "num", count(again)), el("td", "num", time(cost), meter(cost / most, null, "again")),
        el("td", "num", D.graph.base_time ? percent(cost / D.graph.base_time, 3) : "–"));
    }
    row.tabIndex = 0;
    row.dataset.op = op;
    const pick = () => {
      picked = op;
      const s = shown.find((t) => t.runs[op] > 1) ?? shown[0];
      hold(s, s.order.findIndex((x, i) => x === op && s.run[i] === Math.min(2, s.runs[op])));
      markPicked();
      redraw();
    };
    row.addEventListener("click", pick);
    row.addEventListener("keydown", (e) => { if (e.key === "Enter") pick(); });
    body.append(row);
  }
}, (rows, range) => {
  const cost = shown.map((s) => time(rows.reduce((sum, op) => sum + (s.runs[op] - 1) * D.ops.time[op], 0)));
  return count(rows.length) + (rows.length === 1 ? " op, " : " ops, ") + cost.join(" and ") + range;
});

function markPicked() {
  for (const row of $("again").querySelectorAll("tbody tr")) row.classList.toggle("picked", +row.dataset.op === picked);
}

function fillAgain() {
  const word = $("filter").value.trim().toLowerCase();
  const matches = (op) => !word || [D.ops.name[op], D.types[D.ops.type[op]], D.scopes[D.ops.scope[op]]]
    .some((text) => text.toLowerCase().includes(word));
  const rows = D.ops.name.map((_, op) => op).filter((op) => shown.some((s) => s.runs[op] > 1) && matches(op));
  // Columns of each schedule: runs again, cost, share.
  const s = shown[Math.floor(sorting.key / 3)];
  const value = (op) => (s.runs[op] - 1) * (sorting.key % 3 === 0 ? 1 : D.ops.time[op]);
  rows.sort((a, b) => (sorting.down ? value(b) - value(a) : value(a) - value(b)) || a - b);
  showAgain(rows);
}

const showGroups = paged("groups", PAGE_ROWS, (rows) => {
  const heads = [[D.groupings[+$("grouping").value].label], ["Ops", 1], ["First runs", 1]];
  for (const s of shown) {
    const of = shown.length > 1 ? ", " + s.label : "";
    heads.push(["Recomputed" + of, 1], ["Held at the peak" + of, 1]);
  }
  const body = headed($("groups"), heads);
  const most = shown.map((_, k) => [Math.max(...rows.map((r) => r.again[k]), 1e-300), Math.max(...rows.map((r) => r.held[k]), 1)]);
  for (const r of rows) {
    const row = el("tr", "", el("td", "name", r.name || "(none)"), el("td", "num", count(r.ops)),
      el("td", "num", time(r.first)));
    shown.forEach((s, k) => row.append(
      el("td", "num", time(r.again[k]), meter(r.again[k] / most[k][0], null, "again")),
      el("td", "num", bytes(r.held[k]), meter(r.held[k] / most[k][1]))));
    body.append(row);
  }
}, (rows, range) => count(rows.length) + (rows.length === 1 ? " group" : " groups") + range);

function fillGroups() {
  const grouping = D.groupings[+$("grouping").value];
  const rows = grouping.names.map((name) => ({name, ops: 0, first: 0, again: shown.map(() => 0), held: shown.map(() => 0)}));
  grouping.group.forEach((k, op) => {
    rows[k].ops++;
    rows[k].first += D.ops.time[op];
    shown.forEach((s, j) => { rows[k].again[j] += (s.runs[op] - 1) * D.ops.time[op]; });
  });
  shown.forEach((s, j) => {
    for (let c = 0; c < s.copy.length && s.birth[c] <= s.peak_step; c++) {
      if (s.death[c] >= s.peak_step) rows[grouping.group[D.tensors.producer[s.copy[c]]]].held[j] += D.tensors.size[s.copy[c]];
    }
  });
  showGroups(rows);
}

// -- page ----------------------------------------------------------------------------------------

function choose() {
  shown = [D.schedules[+$("first").value]];
  if (+$("second").value >= 0) shown.push(D.schedules[+$("second").value]);
  charts = shown.map((s) => new Chart(s, shown.length > 1));
  $("charts").replaceChildren(...charts.map((chart) => chart.root));
  held = false;
  cursor = null;
  sorting.key = 1;
  sorting.down = true;
  look(0, extent());
  describe();
  fillAgain();
  fillGroups();
}

function setAxis(axis) {
  const s = shown[0], a = stepAt(s, view.lo), b = stepAt(s, Math.min(view.hi, edge(s, s.order.length)));
  const whole = view.lo === 0 && view.hi >= extent() * (1 - 1e-9);
  view.axis = axis;
  for (const name of ["time", "step"]) $("by-" + name).setAttribute("aria-pressed", name === axis);
  if (whole) look(0, extent()); else look(edge(s, a), edge(s, b + 1));
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").textContent = theme === "dark" ? "Light" : "Dark";
  if (charts.length) {
    legend();
    redraw();
    describe();
  }
}

function legend() {
  $("legend").replaceChildren(...KINDS.map((name, k) => {
    const swatch = el("i");
    swatch.style.background = color(COLORS[k]);
    return el("span", "", swatch, name);
  }), el("span", "", el("i", "dash"), "Budget"), el("span", "", el("i", "peak"), "Peak"));
}

function start() {
  const g = D.graph;
  $("title").textContent = g.name;
  $("facts").textContent = [count(g.ops) + " ops", count(g.tensors) + " tensors", "base peak " + bytes(g.base_peak),
    "base time " + time(g.base_time), "no budget below " + bytes(g.memory_lower_bound),
    "memory model " + g.memory_model].join(" · ");
  D.schedules.forEach((s, k) => {
    $("first").append(new Option(s.label, k));
    $("second").append(new Option(s.label, k));
  });
  $("second").prepend(new Option("none", -1));
  $("second").value = D.schedules.length > 1 ? 1 : -1;
  $("second-label").hidden = D.schedules.length < 2;
  D.groupings.forEach((grouping, k) => $("grouping").append(new Option(grouping.label, k)));
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  figures();
  choose();
  legend();
  listenToOverview();
  setAxis(view.axis);
  $("by-time").disabled = !canTime;
  $("first").addEventListener("change", choose);
  $("second").addEventListener("change", choose);
  $("by-time").addEventListener("click", () => setAxis("time"));
  $("by-step").addEventListener("click", () => setAxis("step"));
  $("zoom-in").addEventListener("click", () => zoom(.5, (view.lo + view.hi) / 2));
  $("zoom-out").addEventListener("click", () => zoom(2, (view.lo + view.hi) / 2));
  $("zoom-all").addEventListener("click", () => look(0, extent()));
  $("to-peak").addEventListener("click", () => hold(shown[0], shown[0].peak_step));
  $("filter").addEventListener("input", fillAgain);
  $("grouping").addEventListener("change", fillGroups);
  $("theme").addEventListener("click", () =>
    setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  new ResizeObserver(redraw).observe($("charts"));
}
start();
})();
