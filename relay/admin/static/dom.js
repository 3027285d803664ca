// Nodes, made and kept up to date. Text goes in as text: there is no way here to
// turn a string into markup.

const SVG = "http://www.w3.org/2000/svg";

/** Make an HTML element; attributes that begin with "on" are listeners. */
export function h(tag, attributes, ...children) {
  return dress(document.createElement(tag), attributes, children);
}

/** Make an SVG element. */
export function svg(tag, attributes, ...children) {
  return dress(document.createElementNS(SVG, tag), attributes, children);
}

function dress(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else set(node, name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Set an attribute where it is another; false and null take it away. */
export function set(node, name, value) {
  if (value === false || value === null || value === undefined) {
    node.removeAttribute(name);
    return;
  }
  const text = value === true ? "" : String(value);
  if (node.getAttribute(name) !== text) node.setAttribute(name, text);
}

/** Set a node's text where it is another, so that a selection is left alone. */
export function say(node, value) {
  const text = String(value);
  if (node.textContent !== text) node.textContent = text;
}

/** Show or hide a node. */
export function show(node, isShown) {
  if (node.hidden === isShown) node.hidden = !isShown;
}

/**
 * Keep a parent's children equal to a list of items.
 *
 * `keyOf` tells items apart, `make(item)` returns `{node, update(item)}`. What
 * stays is updated in place, so that focus, selection and open parts live on.
 */
export function makeList(parent, keyOf, make) {
  let views = new Map();
  return function update(items) {
    const focused = parent.contains(document.activeElement) ? document.activeElement : null;
    const next = new Map();
    let place = parent.firstChild;
    for (const item of items) {
      const key = keyOf(item);
      const view = views.get(key) ?? make(item);
      next.set(key, view);
      view.update(item);
      if (view.node === place) place = place.nextSibling;
      else parent.insertBefore(view.node, place);
    }
    for (const [key, view] of views) if (!next.has(key)) view.node.remove();
    views = next;
    if (focused?.isConnected && document.activeElement !== focused) {
      focused.focus({ preventScroll: true });
    }
  };
}

/** Make a list of terms, `update(pairs)` takes `[term, text]`. */
export function makeFacts(node) {
  return {
    node,
    update: makeList(node, ([term]) => term, ([term]) => {
      const value = h("dd");
      return {
        node: h("div", null, h("dt", null, term), value),
        update: ([, text]) => say(value, text),
      };
    }),
  };
}
