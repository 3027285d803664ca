// The beat: a job again and again while the page is seen, one at a time.

/** Run `job` now and `every_ms` after it has ended; returns how to run it at once. */
export function beat(job, every_ms) {
  let timer = 0;
  let isRunning = false;
  async function turn() {
    clearTimeout(timer);
    if (isRunning || document.hidden) return;
    isRunning = true;
    try {
      await job();
    } finally {
      isRunning = false;
      timer = setTimeout(turn, every_ms);
    }
  }
  document.addEventListener("visibilitychange", turn);
  turn();
  return turn;
}
