// A plot: values of a physical source over time, with axes, and a cursor that the
// pointer or the arrow keys move. The cursor is shared by the plots of a source.

import { h, makeList, say, set, svg } from "./dom.js";
import { NONE, clock } from "./format.js";
import { niceMost, thin, timeTicks } from "./scale.js";

const HEIGHT = 132;
const SPACE = { left: 58, right: 10, top: 8, bottom: 20 };

/**
 * Make a plot. `kind` has `title`, `series` (`{name, field}`), `text(value)` for
 * figures, `most(history, values)` for the top of the axis, `ticks(most)`.
 * `cursor` is `{at, listeners}`; `update(history, from, to)`.
 */
export function makePlot(kind, cursor) {
  const readout = h("output", { class: "readout" });
  const grid = svg("g", { class: "grid" });
  const curves = kind.series.map((_, place) => svg("path", { class: `curve curve-${place}` }));
  const area = svg("path", { class: "area" });
  const mark = svg("path", { class: "cursor" });
  const empty = svg("text", { class: "empty", "text-anchor": "middle" });
  const canvas = svg("svg", { height: HEIGHT, "aria-hidden": "true" }, grid, area, ...curves, mark, empty);
  const node = h(
    "div",
    { class: "plot", role: "slider", tabindex: 0, "aria-label": kind.title, "aria-valuemin": 0, onkeydown: step, onpointermove: point, onpointerdown: point, onpointerleave: leave, onblur: leave },
    h("div", { class: "plot-head" }, h("span", { class: "plot-title" }, kind.title), readout),
    canvas,
  );
  const updateGrid = makeList(grid, ({ key }) => key, makeTick);
  let shown = null; // {history, from, to, most}

  let widthPx = 300; // measured once a drawing: each look at it may lay out the page
  const width = () => widthPx;
  const x = (at) => SPACE.left + ((at - shown.from) / (shown.to - shown.from)) * (width() - SPACE.left - SPACE.right);
  const y = (value) => HEIGHT - SPACE.bottom - (Math.min(value, shown.most) / shown.most) * (HEIGHT - SPACE.top - SPACE.bottom);

  function draw() {
    if (!shown) return;
    widthPx = node.clientWidth || widthPx;
    const { history, from, to } = shown;
    const columns = Math.max(50, width() - SPACE.left - SPACE.right);
    set(canvas, "width", width());
    updateGrid(gridLines(from, to));
    kind.series.forEach(({ field }, place) => {
      const runs = cut(thin(history.at, history[field], columns), 3 * history.stepS + (to - from) / columns);
      set(curves[place], "d", runs.map((run) => `M${run.map(spot).join("L")}`).join(""));
      if (place === 0) set(area, "d", runs.map(filled).join(""));
    });
    const isEmpty = !kind.series.some(({ field }) => history[field].some((value) => value !== null));
    say(empty, isEmpty ? "nothing known yet" : "");
    set(empty, "x", width() / 2);
    set(empty, "y", HEIGHT / 2);
    drawCursor();
  }

  const spot = ([at, value]) => `${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
  const filled = (run) => `M${x(run[0][0]).toFixed(1)} ${y(0)}L${run.map(spot).join("L")}L${x(run.at(-1)[0]).toFixed(1)} ${y(0)}Z`;

  function gridLines(from, to) {
    const across = kind.ticks(shown.most).map((value) => ({
      key: `y ${value}`, d: `M${SPACE.left} ${y(value)}H${width() - SPACE.right}`,
      x: SPACE.left - 6, y: y(value) + 4, anchor: "end", text: kind.text(value, true),
    }));
    const down = timeTicks(from, to, Math.max(2, Math.floor(width() / 70))).map(([at, text]) => ({
      key: `x ${at}`, d: `M${x(at)} ${HEIGHT - SPACE.bottom}v4`,
      x: Math.min(x(at), width() - 20), y: HEIGHT - 4, anchor: "middle", text,
    }));
    return [...across, ...down];
  }

  function drawCursor() {
    const { history } = shown;
    const isOn = cursor.at !== null && history.at.length > 0;
    const place = isOn ? nearest(history.at, cursor.at) : history.at.length - 1;
    set(mark, "d", isOn ? `M${x(history.at[place])} ${SPACE.top}V${HEIGHT - SPACE.bottom}` : "");
    const text = place < 0 ? NONE : `${isOn ? clock(history.at[place]) : "now"} ${wordsAt(history, place)}`;
    say(readout, text);
    set(node, "aria-valuemax", Math.max(0, history.at.length - 1));
    // Only what the keys move is told: a slider that tells each second is noise.
    if (isOn || !node.hasAttribute("aria-valuetext")) {
      set(node, "aria-valuenow", Math.max(0, place));
      set(node, "aria-valuetext", text);
    }
  }

  function wordsAt(history, place) {
    const known = kind.series.filter(({ field }) => history[field][place] !== null);
    return known.map(({ name, field }) => `${name}${kind.text(history[field][place], false)}`).join(" · ") || NONE;
  }

  function move(at) {
    cursor.at = at;
    for (const listener of cursor.listeners) listener();
  }

  function point(event) {
    if (!shown) return;
    const share = (event.clientX - canvas.getBoundingClientRect().left - SPACE.left) / (width() - SPACE.left - SPACE.right);
    move(shown.from + Math.min(1, Math.max(0, share)) * (shown.to - shown.from));
  }

  function leave() {
    move(null);
  }

  function step(event) {
    const at = shown?.history.at ?? [];
    const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageUp: 10, PageDown: -10, Home: -at.length, End: at.length }[event.key];
    if (event.key === "Escape") leave();
    if (by === undefined || !at.length) return;
    event.preventDefault();
    const place = cursor.at === null ? at.length - 1 : nearest(at, cursor.at);
    move(at[Math.min(at.length - 1, Math.max(0, place + by))]);
  }

  cursor.listeners.push(() => shown && drawCursor());
  new ResizeObserver(draw).observe(node);
  return {
    node,
    update(history, from, to) {
      const values = kind.series.flatMap(({ field }) => history[field]).filter((value) => value !== null);
      shown = { history, from, to, most: kind.most ? kind.most(history) : niceMost(Math.max(kind.least ?? 0, ...values)) };
      draw();
    },
  };
}

function makeTick() {
  const line = svg("path");
  const label = svg("text");
  return {
    node: svg("g", null, line, label),
    update({ d, x, y, anchor, text }) {
      set(line, "d", d);
      set(label, "x", x);
      set(label, "y", y);
      set(label, "text-anchor", anchor);
      say(label, text);
    },
  };
}

/** Cut points into runs, at what is not known and where time is missing. */
function cut(points, most_s) {
  const runs = [];
  let before = null;
  for (const point of points) {
    if (point[1] !== null) {
      if (before && point[0] - before[0] <= most_s) runs.at(-1).push(point);
      else runs.push([point]);
    }
    before = point[1] === null ? null : point;
  }
  return runs;
}

function nearest(sorted, wanted) {
  let low = 0;
  let high = sorted.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low > 0 && wanted - sorted[low - 1] < sorted[low] - wanted ? low - 1 : low;
}

