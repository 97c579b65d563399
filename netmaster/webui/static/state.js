// The view and what is chosen in it, as the address shows it: #matrix?ns=shop&q=app%3Dweb&port=80%2FTCP&from=…&to=…

export const views = ['overview', 'graph', 'matrix', 'policies', 'drops'];
const keys = ['ns', 'q', 'port', 'outside', 'from', 'to', 'at', 'policy', 'node'];

// parse takes what it does not know for nothing.
export function parse(hash) {
  const [view, query = ''] = splitOnce(hash.replace(/^#/, ''), '?');
  const given = new URLSearchParams(query);
  const state = { view: views.includes(view) ? view : 'overview' };
  for (const key of keys) state[key] = given.get(key) ?? '';
  return state;
}

export function format(state) {
  const query = new URLSearchParams();
  for (const key of keys) if (state[key]) query.set(key, state[key]);
  const text = query.toString();
  return '#' + state.view + (text ? '?' + text : '');
}

function splitOnce(text, at) {
  const i = text.indexOf(at);
  return i < 0 ? [text] : [text.slice(0, i), text.slice(i + 1)];
}

// portOf is the port as the server wants it, "" for none, or null where the text is no port.
export function portOf(text) {
  const m = /^\s*(\d{1,5})\s*(?:\/\s*(tcp|udp|sctp))?\s*$/i.exec(text);
  if (!text.trim()) return '';
  if (!m || Number(m[1]) < 1 || Number(m[1]) > 65535) return null;
  return `${Number(m[1])}/${(m[2] ?? 'tcp').toUpperCase()}`;
}
