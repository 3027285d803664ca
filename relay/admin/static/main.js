// The page: polls the relay once a second while it is visible, and updates its parts.

import { makeAdministration } from "./administration.js";
import { GoneError, RefusedError, TokenError, get, token } from "./api.js";
import { beat } from "./beat.js";
import { makeBootstrap } from "./bootstrap.js";
import { makeClients } from "./clients.js";
import { makeCluster } from "./cluster.js";
import { makeMap } from "./map.js";
import { makeProblems } from "./problems.js";
import { makeRelays } from "./relays.js";
import { makeRows } from "./rows.js";
import { makeSchemas } from "./schemas.js";
import { makeSources } from "./sources.js";
import { makeStatus, tabTitle } from "./status.js";
import { makeTables } from "./tables.js";
import { makeTokenDialog } from "./token_dialog.js";

const BEAT_MS = 1000;
const SCHEMAS_EVERY = 10; // beats
const CLUSTER_EVERY = 2;
const ADMINISTRATION_EVERY = 3;
const RELAYS_EVERY = 3; // as often as the relay itself asks them
const FIRST_REASON = "This relay requires a token.";

const find = (id) => document.getElementById(id);
const status = makeStatus(find, changeToken);
const dialog = makeTokenDialog(() => {
  isLocked = false;
  turn();
});
const parts = {
  map: makeMap(find("map-body")),
  clients: makeClients(find("consumers-summary"), find("consumers-body")),
  bootstrap: makeBootstrap(find("bootstrap"), find("bootstrap-body")),
  cluster: makeCluster(find),
  relays: makeRelays(find("relays"), find("relays-link"), find("relays-body")),
  tables: makeTables(find("tables-body"), find("tables-controls")),
  sources: makeSources(find("sources-body"), find("spans")),
  rows: makeRows(find("rows-body"), find("rows-controls")),
  schemas: makeSchemas(find("schemas-body")),
  problems: makeProblems(find("problems-body")),
  administration: makeAdministration(find("administration"), find("administration-link"), find("administration-body")),
};
let beats = 0;
let relays = []; // the other ones
let isLocked = false; // waiting for a token: polling pauses

async function once() {
  if (isLocked) return;
  try {
    const [relay, { physicalSources }, { clients }, { problems }, pairs] = await Promise.all(
      ["relay", "physicalSources", "clients", "problems", "bootstrap"].map((path) => get(path)),
    );
    if (beats % RELAYS_EVERY === 0) ({ relays } = await get("relays"));
    status.answered(relay, physicalSources, clients, pairs, relays);
    document.title = tabTitle(relay, clients, physicalSources);
    await inTurns(
      () => parts.sources.update(physicalSources, relay.role === "admin"),
      () => parts.map.update(relay, physicalSources, clients),
      () => parts.clients.update(clients),
      () => parts.bootstrap.update(pairs),
      () => parts.relays.update(relays),
      () => parts.problems.update(problems),
      () => parts.rows.update(physicalSources),
    );
    await Promise.all([parts.sources.refresh(), parts.rows.refresh(), parts.tables.refresh(clients), schemas(), cluster(), administration(relay.role)]);
    beats += 1;
  } catch (error) {
    tell(error);
  }
}

// One task for each: with hundreds of tables and consumers the page still answers a key at once.
async function inTurns(...updates) {
  for (const update of updates) {
    update();
    await new Promise((resolve) => setTimeout(resolve));
  }
}

async function schemas() {
  if (beats % SCHEMAS_EVERY === 0) parts.schemas.update((await get("schemas")).sources);
}

async function cluster() {
  if (beats % CLUSTER_EVERY === 0) await parts.cluster.refresh();
}

async function administration(role) {
  if (beats % ADMINISTRATION_EVERY === 0) await parts.administration.refresh(role);
}

function tell(error) {
  if (error instanceof TokenError) lock();
  else if (error instanceof GoneError) status.gone(error.message);
  else if (error instanceof RefusedError) status.refused(error.message);
  else throw error;
}

function lock() {
  const wasGiven = token.get() !== "";
  token.forget();
  isLocked = true;
  status.locked("The relay requires a token.");
  dialog.ask(wasGiven ? "The relay does not accept that token." : FIRST_REASON);
}

function changeToken() {
  if (isLocked) {
    dialog.ask(FIRST_REASON);
    return;
  }
  token.forget();
  turn();
}

const turn = beat(once, BEAT_MS);
