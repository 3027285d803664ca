// What the relay sees of its cluster: groups, servers and who reads whom, leases, the relays above.

import { get, relayNow } from "./api.js";
import { makeGroup } from "./cluster_group.js";
import { h, makeList, say, set, show } from "./dom.js";
import { clock, duration, scn } from "./format.js";
import { makeState } from "./marks.js";
import { treeOf } from "./server_tree.js";

const HOLDING = { held: "ok", free: "stopped", run_out: "gone", unknown: "waiting" };
const SERVER = { alive: "ok", unknown: "waiting", gone: "gone", draining: "paused" };

/** Make the part; `refresh()` asks and draws. It is hidden for a relay that is alone. */
export function makeCluster(find) {
  const [section, link, summary, body] = ["cluster", "cluster-link", "cluster-summary", "cluster-body"].map(find);
  const details = h("div");
  const groups = makeTable("Groups", ["Group", "Processes", "Owned", "Lag", "Moved within a day", "State"], ({ name }) => name, () => makeGroup(details));
  groups.node.append(details);
  const servers = makeTable("Servers", ["Server", "State", "Source", "Depth", "Newest SCN", "Behind", "Room", "Connections"], ({ key }) => key, makeServer);
  const chains = makeTable("Relays above", ["Source", "From here to the database"], ({ physicalSource }) => physicalSource, makeChain);
  const leases = makeTable("Leases", ["Lease", "State", "Owner", "Term", "Renewed"], ({ name }) => name, makeLease);
  body.append(groups.node, servers.node, chains.node, leases.node);

  return {
    async refresh() {
      const [found, listed, { chains: all }, held] = await Promise.all(["groups", "servers", "chain", "leases"].map((path) => get(path)));
      const above = all.filter(({ links }) => links[0].reads);
      const isAlone = found.coordinator === null && above.length === 0;
      for (const node of [section, link]) show(node, !isAlone);
      if (isAlone) return;
      say(summary, summaryOf(found.coordinator));
      set(summary, "data-problem", Boolean(found.coordinator?.problem));
      groups.update(found.groups);
      servers.update(treeOf(listed.servers));
      chains.update(above);
      // Those of a group's processes are counted with the group.
      leases.update(held.leases.filter(({ name }) => !name.startsWith("group/")));
    },
  };
}

function summaryOf(coordinator) {
  if (coordinator === null) return "No coordinator.";
  const { url, seenAt, problem } = coordinator;
  const seen = seenAt === null ? "not seen yet" : `seen ${duration(relayNow() - seenAt)} ago`;
  return problem ? `The coordinator does not answer, what is shown was ${seen}: ${problem}` : `${url} · ${seen}`;
}

function makeTable(title, columns, keyOf, make) {
  const rows = h("tbody");
  const heads = columns.map((text) => h("th", { scope: "col" }, text));
  const count = h("span", { class: "hint" });
  const table = h("table", null, h("caption", null, title, " ", count), h("thead", null, h("tr", null, ...heads)), rows);
  const node = h("div", { class: "cluster-table", hidden: true }, table);
  const update = makeList(rows, keyOf, make);
  return {
    node,
    update(items) {
      show(node, items.length > 0);
      say(count, items.length > 1 ? String(items.length) : "");
      update(items);
    },
  };
}

function makeServer() {
  const url = h("th", { scope: "row" });
  const state = makeState();
  const [source, depth, newest, behind, room, connections] = cells(6);
  return {
    node: h("tr", null, url, h("td", null, state.node), source, depth, newest, behind, room, connections),
    update({ level, server, source: one }) {
      url.style.paddingInlineStart = `${0.6 + level * 1.4}rem`;
      say(url, server.kind === "bootstrap" ? `${server.url} (bootstrap)` : server.url);
      const word = one.isDraining ? "draining" : server.state;
      state.update(SERVER[word], word === "gone" ? `gone since ${clock(server.seenAt, relayNow())}` : word);
      say(source, one.name);
      say(depth, one.isInLoop ? "in a circle" : one.depth === null ? "unknown" : one.depth);
      say(newest, scn(one.newestScn));
      say(behind, one.behindS === null ? "unknown" : duration(one.behindS));
      say(room, server.room);
      say(connections, server.connections);
    },
  };
}

function makeChain() {
  const name = h("th", { scope: "row" });
  const way = h("td");
  return {
    node: h("tr", null, name, way),
    update(chain) {
      say(name, chain.physicalSource);
      say(way, chainWords(chain));
      set(way, "data-problem", chain.loop !== "" || chain.links.some(({ problem }) => problem));
    },
  };
}

function chainWords({ links, loop, depth }) {
  if (loop) return `Read in a circle: ${loop}`;
  const above = links.slice(1).map(({ url, room, isDraining, problem }) => {
    const notes = [room, isDraining && "draining", problem].filter(Boolean).join(", ");
    return notes ? `${url} (${notes})` : url;
  });
  const last = links.at(-1);
  const end = depth !== null ? ["database"] : last.problem ? [] : [`${last.reads} (not known yet)`];
  return ["here", ...above, ...end].join(" ← ");
}

function makeLease() {
  const name = h("th", { scope: "row" });
  const state = makeState();
  const [owner, term, renewed] = cells(3);
  return {
    node: h("tr", null, name, h("td", null, state.node), owner, term, renewed),
    update(lease) {
      say(name, lease.name);
      state.update(HOLDING[lease.holding], lease.holding.replace("_", " "));
      say(owner, lease.owner || "nobody");
      say(term, lease.term);
      say(renewed, lease.renewedAt === null ? "unknown" : `${duration(relayNow() - lease.renewedAt)} ago`);
    },
  };
}

function cells(number) {
  return Array.from({ length: number }, () => h("td"));
}
