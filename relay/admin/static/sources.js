// The physical sources: a card each, with its state, facts, plots and buttons.

import { get, relayNow, sourcePath } from "./api.js";
import { makeControls } from "./controls.js";
import { h, makeFacts, makeList, say, set, show } from "./dom.js";
import { binlogPlace, bytes, clock, count, duration, percent, perSecond, scn } from "./format.js";
import { captureWord, makeState } from "./marks.js";
import { makePlot } from "./plots.js";
import { PLOTS, SPANS } from "./plot_kinds.js";

const NAMED = 10; // sources in a card

/** Make the cards; `update(physicalSources, isAdmin)`, `refresh()` loads the history for the plots. */
export function makeSources(root, choice) {
  const state = { span: SPANS[0], isAdmin: false };
  const cards = new Map();
  const update = makeList(root, ({ name }) => name, (source) => {
    const card = makeCard(source, state);
    cards.set(source.name, card);
    return card;
  });
  choice.append(...SPANS.map((span) => spanButton(span, state, choice, refresh)));

  function refresh(isForced = false) {
    return Promise.all([...cards.values()].filter(({ node }) => node.isConnected).map((card) => card.refresh(isForced)));
  }

  return {
    refresh,
    update(physical, isAdmin) {
      state.isAdmin = isAdmin;
      update(physical);
    },
  };
}

function spanButton(span, state, choice, refresh) {
  return h("button", { type: "button", "aria-pressed": String(span === state.span), onclick: choose }, span.text);

  function choose(event) {
    state.span = span;
    for (const button of choice.children) set(button, "aria-pressed", String(button === event.currentTarget));
    // The next beat reports errors.
    refresh(true).catch(() => {});
  }
}

function makeCard({ name }, shared) {
  const uri = h("span", { class: "uri" });
  const state = makeState();
  const problem = h("p", { class: "trouble-box", hidden: true });
  const warnings = h("ul", { class: "warnings" });
  const updateWarnings = makeList(warnings, (text) => text, (text) => ({ node: h("li", null, text), update() {} }));
  const facts = makeFacts(h("dl", { class: "facts" }));
  const ring = makeRing();
  const cursor = { at: null, listeners: [] };
  const plots = PLOTS.map((kind) => makePlot(kind, cursor));
  const controls = makeControls(name, update);
  const node = h(
    "article",
    { class: "card", id: `source-${name}`, tabindex: -1, "aria-label": `Physical source ${name}` },
    h("div", { class: "card-head" }, h("h3", null, name), state.node, uri, controls.node),
    problem,
    warnings,
    h("div", { class: "card-figures" }, ring.node, facts.node),
    h("div", { class: "plots" }, ...plots.map((plot) => plot.node)),
  );
  let askedAt = 0;

  function update(source) {
    const word = captureWord(source);
    set(node, "data-state", word);
    state.update(word, source.drain ? (source.drain.isDone ? "drained" : "draining") : word);
    say(uri, source.uri);
    show(problem, source.problem !== "");
    say(problem, source.problem);
    updateWarnings([...new Set([...source.warnings, source.log.warning].filter(Boolean))]);
    ring.update(source);
    facts.update(factsOf(source));
    controls.update(source, shared.isAdmin);
  }

  async function refresh(isForced) {
    const { span } = shared;
    if (!isForced && Date.now() - askedAt < span.every_ms) return;
    askedAt = Date.now();
    const history = await get(sourcePath(name, "/history"), { seconds: span.seconds });
    if (span !== shared.span) return;
    const to = relayNow();
    for (const plot of plots) plot.update(history, to - span.seconds, to);
  }

  return { node, update, refresh };
}

function makeRing() {
  const fill = h("div", { class: "fill" });
  const words = h("p", { class: "words" });
  const sleep = h("p", { class: "sleep" });
  const bar = h("div", { class: "bar", role: "meter", "aria-label": "Ring", "aria-valuemin": 0, "aria-valuemax": 100 }, fill);
  return {
    node: h("div", { class: "ring" }, h("p", { class: "term" }, "Ring"), bar, words, sleep),
    update({ ring }) {
      const share = ring.capacityBytes ? ring.usedBytes / ring.capacityBytes : 0;
      const text = `${bytes(ring.usedBytes)} of ${bytes(ring.capacityBytes)}, ${percent(share)}`;
      fill.style.width = `${Math.min(100, share * 100)}%`;
      set(bar, "aria-valuenow", Math.round(share * 100));
      set(bar, "aria-valuetext", text);
      say(words, text);
      say(sleep, ring.sleepS === null ? "no writes: a consumer may pause for any time" : `a consumer may pause for ${duration(ring.sleepS)}`);
    },
  };
}

function factsOf(source) {
  const { ring, log, relayLog } = source;
  const now = relayNow();
  const span = (value) => {
    const place = binlogPlace(value, source.uri);
    return place ? `${scn(value)} (${place})` : scn(value);
  };
  const facts = [
    ["Rate", `${perSecond(source.eventsPerS)} rows/s · ${perSecond(source.windowsPerS)} tx/s · ${bytes(source.bytesPerS)}/s`],
    ["Commit to ring", source.delayS === null ? "unknown" : duration(source.delayS)],
    ["Behind the database", log.behindBytes === null && log.behindS === null ? "unknown" : `${bytes(log.behindBytes)} · ${duration(log.behindS)}`],
    ["Newest SCN", span(ring.maxScn)],
    ["Oldest SCN", span(ring.minScn)],
    ["Newest commit", clock(ring.newestAt, now)],
    ["Oldest commit", ring.oldestAt === null ? clock(null) : `${clock(ring.oldestAt, now)} · ${duration(now - ring.oldestAt)} ago`],
    ["Since the start", `${count(source.events)} rows · ${count(source.windows)} tx · ${bytes(source.sizeBytes)}`],
    ["Reconnects", count(source.reconnects)],
    ["Sources", namesOf(source.sources)],
  ];
  if (!source.isConnected && source.heardAt !== null) facts.push(["Last heard from", clock(source.heardAt, now)]);
  if (relayLog) {
    const reach = relayLog.oldestAt === null ? "empty" : `back to ${clock(relayLog.oldestAt, now)} · ${duration(now - relayLog.oldestAt)}`;
    facts.push(["Relay log", `${reach} · ${bytes(relayLog.sizeBytes)} · ${percent(Math.min(1, relayLog.retentionShare))} of what is kept`]);
    const { archive } = relayLog;
    if (archive) {
      const waiting = archive.waitingSegments ? ` · ${count(archive.waitingSegments)} segments wait` : "";
      const back = archive.oldestAt === null ? "empty" : `back to ${clock(archive.oldestAt, now)}`;
      facts.push(["Archive", `${archive.isKnown ? back : "not listed yet"} · ${bytes(archive.sizeBytes)}${waiting}`]);
    }
    if (relayLog.captureWaitsS !== null) facts.push(["Capture waits for the log", duration(relayLog.captureWaitsS)]);
  }
  for (const one of source.catchUps) {
    const reach = one.scn === null ? `from ${span(one.askedScn)}` : `at ${span(one.scn)}, ${clock(one.at, now)}`;
    const readers = one.readers.length ? ` · for ${one.readers.join(", ")}` : "";
    facts.push(["Catch-up", `${one.state.replace("_", " ")} · ${reach} · ${bytes(one.sizeBytes)}${readers}`]);
  }
  if (log.hoursLeft !== null) facts.push(["Database may purge in", duration(log.hoursLeft * 3600)]);
  return facts;
}

// The part "Tables" has them all.
function namesOf(sources) {
  const names = sources.slice(0, NAMED).map(({ name, table }) => (!table || name === table ? name : `${name} (${table})`));
  return names.join(", ") + (sources.length > NAMED ? ` and ${count(sources.length - NAMED)} more` : "");
}
