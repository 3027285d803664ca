// The tree of servers: each behind the one that it reads. Pure.

/** Servers → lines `{key, level, server, source}`, one for each physical source of each server. */
export function treeOf(servers) {
  const names = new Set(servers.flatMap(({ sources }) => sources.map(({ name }) => name)));
  return [...names].flatMap((name) => treeOfSource(servers, name));
}

function treeOfSource(servers, name) {
  const having = new Map();
  for (const server of servers) {
    const source = server.sources.find((one) => one.name === name);
    if (source) having.set(server.instance, { key: `${server.instance} ${name}`, server, source });
  }
  const lines = [];
  const done = new Set();
  const add = (instance, level) => {
    if (done.has(instance)) return;
    done.add(instance);
    lines.push({ ...having.get(instance), level });
    for (const [below, { source }] of having) if (source.parent === instance) add(below, level + 1);
  };
  for (const [instance, { source }] of having) if (!having.has(source.parent)) add(instance, 0);
  // Of those in a circle, none is above all others.
  for (const instance of having.keys()) add(instance, 0);
  return lines;
}
