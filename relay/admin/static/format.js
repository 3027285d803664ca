// Numbers as text for people. Pure. Unknown values are a dash.

export const NONE = "–";

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const pad = (number) => String(number).padStart(2, "0");
const isNone = (value) => value === null || value === undefined;

/** 12345 → "12,345". */
export function count(value) {
  return isNone(value) ? NONE : grouped.format(value);
}

/** A rate per second, with three significant digits. */
export function perSecond(value) {
  if (isNone(value)) return NONE;
  if (value >= 100 || value === 0) return grouped.format(value);
  return value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

/** 5000 → "4.9 KiB". */
export function bytes(value) {
  if (isNone(value)) return NONE;
  let left = Number(value);
  let unit = 0;
  while (left >= 1023.5 && unit < UNITS.length - 1) {
    left /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || left >= 99.95 ? 0 : left >= 9.995 ? 1 : 2;
  return `${left.toFixed(digits)} ${UNITS[unit]}`;
}

/** Seconds as the two largest units that matter: "350 ms", "4.2 s", "3 min 20 s", "2 h 5 min". */
export function duration(value) {
  if (isNone(value)) return NONE;
  const seconds = Math.max(0, Number(value));
  if (seconds === 0) return "0 s";
  if (seconds < 0.0005) return "< 1 ms";
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return two(whole, 60, "min", 1, "s");
  if (whole < 86400) return two(whole, 3600, "h", 60, "min");
  return two(whole, 86400, "d", 3600, "h");
}

/** The largest unit alone: "4 min". For distances that are anyway rough. */
export function roughly(value) {
  if (isNone(value)) return NONE;
  if (value < 60) return `${Math.max(0, Math.round(value))}\u00a0s`;
  if (value < 3600) return `${Math.round(value / 60)}\u00a0min`;
  return value < 2 * 86400 ? `${Math.round(value / 3600)}\u00a0h` : `${Math.round(value / 86400)}\u00a0d`;
}

function two(whole, large, largeName, small, smallName) {
  const rest = Math.floor((whole % large) / small);
  const first = `${Math.floor(whole / large)} ${largeName}`;
  return rest ? `${first} ${rest} ${smallName}` : first;
}

/** 0.123 → "12 %"; what is nearly nothing or nearly all does not become it. */
export function percent(share) {
  if (isNone(share)) return NONE;
  if (share > 0 && share < 0.01) return "<\u00a01\u00a0%";
  return `${Math.floor(share * 100)}\u00a0%`;
}

/** Seconds since 1970 as the time of day here, with the date when it is another day. */
export function clock(at, now = Date.now() / 1000) {
  if (isNone(at)) return NONE;
  const day = new Date(at * 1000);
  const time = `${pad(day.getHours())}:${pad(day.getMinutes())}:${pad(day.getSeconds())}`;
  const isToday = day.toDateString() === new Date(now * 1000).toDateString();
  return isToday ? time : `${date(day)} ${time}`;
}

function date(day) {
  return `${day.getFullYear()}-${pad(day.getMonth() + 1)}-${pad(day.getDate())}`;
}

/** An SCN as it is: a string of digits that may be beyond 2**53. */
export function scn(value) {
  return isNone(value) ? NONE : String(value);
}

/** Where in MySQL's binlog an SCN is: file number and offset; empty elsewhere. */
export function binlogPlace(value, uri) {
  if (isNone(value) || !/^(mysql|mariadb):/.test(uri)) return "";
  const whole = BigInt(value);
  const epoch = whole >> 55n;
  const place = `binlog file ${(whole >> 32n) & 0x7fffffn}, offset ${whole & 0xffffffffn}`;
  return epoch ? `epoch ${epoch}, ${place}` : place;
}

/** One thing or several: plural(2, "row") → "2 rows". */
export function plural(number, noun, many = `${noun}s`) {
  return `${count(number)} ${Number(number) === 1 ? noun : many}`;
}
