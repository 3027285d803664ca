// The map: physical sources → relay → consumers, with the current rates on the lines.
//
// Boxes are HTML, so that names can be read, copied and followed; lines are SVG
// below them, drawn from where the boxes are.

import { h, makeList, say, set, show, svg } from "./dom.js";
import { bytes, perSecond } from "./format.js";
import { captureWord, clientWords, databaseWord, makeShape, relayState } from "./marks.js";
import { MOST_SHOWN, countStates, worstFirst } from "./order.js";

const NARROW_PX = 720;
const RUN_PX = 130; // the straight part of a line, which carries its rate

/** Make the map; `update(relay, physicalSources, clients)`. */
export function makeMap(root) {
  const lines = svg("svg", { class: "lines", "aria-hidden": "true" });
  const sources = h("ul", { class: "column", "aria-label": "Physical sources" });
  const relay = makeBox();
  const clients = h("ul", { class: "column", "aria-label": "Consumers" });
  const rest = h("p", { class: "rest" });
  const frame = h("div", { class: "map" }, lines, sources, h("div", { class: "column" }, relay.node), h("div", { class: "column" }, clients, rest));
  root.append(frame);
  const updateSources = makeList(sources, ({ key }) => key, makeItem);
  const updateClients = makeList(clients, ({ key }) => key, makeItem);
  const updateLines = makeList(lines, ({ key }) => key, makeLine);
  let flows = [];

  function draw() {
    const place = frame.getBoundingClientRect();
    const isNarrow = place.width < NARROW_PX;
    set(frame, "data-narrow", isNarrow);
    set(lines, "width", place.width);
    set(lines, "height", place.height);
    const ends = placesIn(frame, place);
    const middle = ends.get("relay");
    updateLines(
      flows
        .filter(({ key }) => ends.has(key))
        .map((flow) => ({ ...flow, ...(isNarrow ? narrowPath : widePath)(flow, ends.get(flow.key), middle) })),
    );
  }

  new ResizeObserver(draw).observe(frame);
  return {
    update(relayView, physical, everybody) {
      const sourceFlows = physical.map(flowOfSource);
      const sorted = worstFirst(everybody);
      const clientFlows = sorted.slice(0, MOST_SHOWN).map(flowOfClient);
      const folded = sorted.slice(MOST_SHOWN);
      updateSources(sourceFlows);
      updateClients(clientFlows);
      relay.update(boxOfRelay(relayView));
      show(rest, folded.length > 0 || !everybody.length);
      say(rest, folded.length ? `and ${folded.length} more: ${countStates(folded)}` : "no consumer");
      flows = [...sourceFlows, ...clientFlows];
      draw();
    },
  };
}

function flowOfSource(source) {
  return {
    key: `source ${source.name}`,
    side: "in",
    href: `#source-${source.name}`,
    name: source.name,
    ...databaseState(source),
    size: source.bytesPerS,
    rate: `${perSecond(source.eventsPerS)} rows/s`,
  };
}

// A database whose capture is stopped by an error of the relay is not shown as failed.
function databaseState(source) {
  const word = databaseWord(source);
  const state = word === "connected" || source.state === "paused" ? captureWord(source) : word;
  return { word: state, state };
}

function flowOfClient(client) {
  return {
    key: `client ${client.id}`,
    side: "out",
    href: `#client-${client.id}`,
    name: client.name || client.id,
    word: clientWords(client),
    state: client.state,
    size: client.bytesPerS,
    rate: `${bytes(client.bytesPerS)}/s`,
  };
}

function boxOfRelay(relay) {
  const itsOwn = relayState(relay);
  return {
    key: "relay",
    href: "#content",
    name: relay.name,
    word: itsOwn,
    state: itsOwn,
    rate: `${bytes(relay.servedBytesPerS)}/s out`,
  };
}

function makeItem() {
  const box = makeBox();
  return { node: h("li", null, box.node), update: box.update };
}

function makeBox() {
  const shape = makeShape();
  const name = h("span", { class: "name" });
  const word = h("span", { class: "word" });
  const rate = h("span", { class: "rate" });
  const node = h("a", { class: "box" }, shape.node, name, word, rate);
  return {
    node,
    update(box) {
      set(node, "href", box.href);
      set(node, "data-key", box.key);
      set(node, "data-state", box.state);
      shape.update(box.state);
      say(name, box.name);
      set(name, "title", box.name);
      say(word, box.word);
      say(rate, box.rate);
    },
  };
}

function placesIn(frame, origin) {
  const found = new Map();
  for (const box of frame.querySelectorAll(".box")) {
    const { left, right, top, height } = box.getBoundingClientRect();
    found.set(box.dataset.key, { left: left - origin.left, right: right - origin.left, y: top - origin.top + height / 2 });
  }
  return found;
}

function makeLine() {
  const path = svg("path");
  const text = svg("text");
  const node = svg("g", null, path, text);
  return {
    node,
    update({ d, x, y, anchor, rate, state, size }) {
      set(node, "data-state", state);
      set(node, "data-idle", !(size > 0));
      set(path, "d", d);
      // A tenfold flow is a thicker line, not a tenfold one.
      set(path, "stroke-width", size > 0 ? Math.min(6, 1 + Math.log10(1 + size) * 0.6).toFixed(2) : 1);
      set(text, "visibility", x === null ? "hidden" : null);
      set(text, "x", x ?? 0);
      set(text, "y", y ?? 0);
      set(text, "text-anchor", anchor);
      say(text, rate);
    },
  };
}

function widePath({ side }, end, relay) {
  const isIn = side === "in";
  const from = isIn ? end.right : relay.right;
  const to = isIn ? relay.left : end.left;
  const run = Math.min(RUN_PX, (to - from) / 2);
  const [a, b] = isIn ? [from + run, to] : [from, to - run];
  const [ya, yb] = isIn ? [end.y, relay.y] : [relay.y, end.y];
  const bend = (b - a) / 2;
  const curve = `M${from} ${ya}H${a}C${a + bend} ${ya} ${b - bend} ${yb} ${b} ${yb}H${to}`;
  return { d: curve, x: isIn ? from + 8 : to - 8, y: end.y - 6, anchor: isIn ? "start" : "end" };
}

// One below the other: lines run down the margin, rates stand in the boxes.
function narrowPath({ side }, end, relay) {
  const margin = side === "in" ? 8 : 14;
  return { d: `M${end.left} ${end.y}H${margin}V${relay.y}H${relay.left}`, x: null, y: null, anchor: "start" };
}
