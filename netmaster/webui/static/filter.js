// Which groups of the matrix are shown, and at which end. Pure.

// read takes the filter's text apart: words, each for both ends or (from:, to:) for one, and with a minus to leave out.
export function read(text) {
  const terms = [];
  for (let word of text.trim().split(/\s+/)) {
    const term = { end: 'both', out: false };
    if (word.startsWith('-')) [term.out, word] = [true, word.slice(1)];
    const m = /^(from|to):(.*)$/i.exec(word);
    if (m) [term.end, word] = [m[1].toLowerCase(), m[2]];
    term.word = word.toLowerCase();
    if (term.word) terms.push(term);
  }
  return terms;
}

// matches: key=value is a label, with the value from its beginning; any other word is part of a name or of a label.
function matches(word, group, labels) {
  if (word.includes('=')) return labels.some((l) => l.startsWith(word));
  return group.text.includes(word) || labels.some((l) => l.includes(word));
}

// index makes what is searched in, once a matrix.
export function index(matrix) {
  return matrix.groups.map((g, i) => ({
    namespace: g.namespace ?? '',
    text: [g.name, ...(g.pods ?? [])].join(' ').toLowerCase(),
    labels: (matrix.labels?.[i] ?? Object.entries(g.labels ?? {}).map(([k, v]) => `${k}=${v}`)).map((l) => l.toLowerCase()),
  }));
}

// ends are the indexes of the groups shown as where packets come from, and where they go.
export function ends(searched, { ns = '', q = '' }) {
  const terms = read(q);
  const keep = (end) => {
    const of = terms.filter((t) => t.end === 'both' || t.end === end);
    const list = [];
    searched.forEach((g, i) => {
      if (ns && g.namespace !== ns && (g.namespace || terms.length)) return;
      if (of.every((t) => matches(t.word, g, g.labels) !== t.out)) list.push(i);
    });
    return list;
  };
  return { from: keep('from'), to: keep('to') };
}
