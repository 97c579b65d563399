// Elements. Text goes in as text, never as markup: names and labels are strangers' words.

const svgNames = 'http://www.w3.org/2000/svg';

// plain makes an element: attributes (on… are listeners, true and false set and leave out), then children: elements, texts, lists.
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

// s does the same for SVG.
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(svgNames, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, '');
    else if (value !== false && value !== undefined && value !== null) element.setAttribute(name, String(value));
  }
  add(element, children);
  return element;
}

function add(element, child) {
  if (Array.isArray(child)) for (const c of child) add(element, c);
  else if (child instanceof Node) element.append(child);
  else if (child !== undefined && child !== null && child !== false) element.append(document.createTextNode(String(child)));
}

// replace puts these in the place of all that an element holds.
export function replace(element, ...children) {
  element.replaceChildren();
  add(element, children);
}

// helpLink is a link to a section of the documentation, if there is one.
export const helpLink = (path) => path && [' ', h('a', { class: 'help', href: path }, 'Help')];

export const byID = (id) => document.getElementById(id);

// plural is "1 pod", "2 pods".
export const plural = (n, one, many = one + 's') => `${n.toLocaleString('en')} ${n === 1 ? one : many}`;

// age is how long ago, in words.
export function age(time, now = Date.now()) {
  const t = Date.parse(time);
  if (!(t > 0)) return '';
  const seconds = Math.max(0, Math.round((now - t) / 1000));
  const units = [[86400, 'd'], [3600, 'h'], [60, 'm']];
  for (const [size, name] of units) if (seconds >= 2 * size) return Math.floor(seconds / size) + name;
  return seconds + 's';
}
