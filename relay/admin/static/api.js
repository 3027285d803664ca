// The API client. The token is stored in sessionStorage: it is deleted with the tab, and the
// browser never sends it on its own, unlike a cookie.

const KEY = "databus.token";
const PATIENCE_MS = 5000;
const LONG_NUMBER = /[:,[]\s*-?\d{16}/; // not in quotes, as SCNs are

/** No answer: the relay or the network is down. */
export class GoneError extends Error {}

/** The relay requires another token. */
export class TokenError extends Error {}

/** The relay has answered with an error. */
export class RefusedError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const token = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  keep: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

let clockAhead_s = 0; // how far the relay's clock is ahead of this one

/** Seconds since 1970 by the relay's clock, exact enough for ages. */
export function relayNow() {
  return Date.now() / 1000 + clockAhead_s;
}

/** GET a path below /api/v1. */
export function get(path, query = {}) {
  const words = new URLSearchParams(query).toString();
  return ask("GET", words ? `${path}?${words}` : path);
}

/** POST to a path below /api/v1. */
export function post(path, body = null) {
  return ask("POST", path, body);
}

/** The path of a physical source, or below it. */
export function sourcePath(name, below = "") {
  return `physicalSources/${encodeURIComponent(name)}${below}`;
}

async function ask(method, path, body = null) {
  const headers = {};
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  if (body) headers["Content-Type"] = "application/json";
  let answer, text;
  try {
    answer = await fetch(`api/v1/${path}`, {
      method,
      headers,
      body: body && JSON.stringify(body),
      cache: "no-store",
      credentials: "omit",
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
    text = await answer.text();
  } catch (error) {
    throw new GoneError(error.name === "TimeoutError" ? "timeout" : "no connection");
  }
  setClock(answer.headers.get("Date"));
  if (answer.status === 401) throw new TokenError(messageOf(text, answer.status));
  if (!answer.ok) throw new RefusedError(answer.status, messageOf(text, answer.status));
  try {
    // A reviver is called for each value, which is slow: only where a number needs it.
    return LONG_NUMBER.test(text) ? JSON.parse(text, exactly) : JSON.parse(text);
  } catch {
    throw new RefusedError(answer.status, `${path}: the answer is not JSON`);
  }
}

// A bigint may exceed the exact range of a JavaScript number: it is kept as text.
function exactly(_key, value, context) {
  const isCut = typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value);
  return isCut && /^-?\d+$/.test(context?.source ?? "") ? BigInt(context.source) : value;
}

function messageOf(text, status) {
  try {
    return String(JSON.parse(text).message);
  } catch {
    return `status ${status}`;
  }
}

function setClock(header) {
  const ahead_s = (Date.parse(header ?? "") - Date.now()) / 1000;
  // The header has whole seconds: less than two is no difference.
  if (Number.isFinite(ahead_s)) clockAhead_s = Math.abs(ahead_s) < 2 ? 0 : ahead_s;
}
