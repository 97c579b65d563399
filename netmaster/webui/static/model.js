// What the graph shows of a matrix: nodes, and what comes in to each by its ports. Pure.

export const mostNodes = 80; // above, namespaces stand for their groups
export const mostEdges = 600;

// modelOf makes nodes of groups, or of namespaces where groups are too many. Each node has ports: one for each set of connections that
// somebody may open to it, with from, the nodes that may; everyone is set where these are all that reach anything at all.
export function modelOf(matrix, shown, signs) {
  const all = [...new Set([...shown.from, ...shown.to])].sort((a, b) => a - b);
  const grouped = all.length > mostNodes;
  const nodes = grouped ? namespaces(matrix, all) : all.map((i) => groupNode(matrix, i));
  const of = new Map();
  nodes.forEach((n, at) => n.members.forEach((i) => of.set(i, at)));
  const between = tally(matrix, shown, of, nodes.length);
  const ports = nodes.map((_, to) => portsOf(between[to], nodes, signs, grouped, matrix));
  const senders = new Set(ports.flatMap((list, to) => list.flatMap((p) => p.from.filter((f) => f !== to))));
  nodes.forEach((n, to) => { n.ports = ports[to].map((p) => ({ ...p, everyone: isEveryone(p, senders, to, nodes) })); });
  return { nodes, grouped, edges: edgesOf(nodes) };
}

function groupNode(matrix, i) {
  const g = matrix.groups[i];
  const pods = g.pods?.length ?? 0;
  const short = g.namespace && g.name.startsWith(g.namespace) ? g.name.slice(g.namespace.length).replace(/^[/ ]/, '') || 'all pods' : g.name;
  return { name: short, namespace: g.namespace ?? 'outside', note: pods > 1 ? `${pods} pods` : '', outside: pods === 0, members: [i], full: g.name };
}

function namespaces(matrix, all) {
  const by = new Map();
  for (const i of all) {
    const name = matrix.groups[i].namespace ?? '';
    if (!by.has(name)) by.set(name, []);
    by.get(name).push(i);
  }
  return [...by].sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, members]) => {
    const pods = members.reduce((n, i) => n + (matrix.groups[i].pods?.length ?? 0), 0);
    return { name: name || 'outside', namespace: name || 'outside', note: `${members.length} groups, ${pods} pods`, outside: !name, members, full: name || 'outside', isNamespace: true };
  });
}

// tally counts, by target, source and value, the pairs of groups between two nodes.
function tally(matrix, shown, of, size) {
  const between = Array.from({ length: size }, () => new Map());
  for (const i of shown.from) {
    const row = matrix.cells[i];
    for (const j of shown.to) {
      if (i === j && (matrix.groups[i].pods?.length ?? 0) < 2) continue;
      if (!matrix.groups[i].pods?.length && !matrix.groups[j].pods?.length) continue;
      const to = between[of.get(j)], from = of.get(i);
      if (!to.has(from)) to.set(from, new Map());
      const counts = to.get(from);
      counts.set(row[j], (counts.get(row[j]) ?? 0) + 1);
    }
  }
  return between;
}

// portsOf gathers the sources by what they may open; of namespaces that differ within, "some".
function portsOf(sources, nodes, signs, grouped) {
  const by = new Map();
  for (const [from, counts] of sources) {
    const open = [...counts].filter(([value]) => signs[value].kind !== 'none');
    if (!open.length) continue;
    const mixed = counts.size > 1;
    const key = mixed ? 'some' : open[0][0];
    const text = mixed ? 'some' : signs[open[0][0]].text;
    if (!by.has(key)) by.set(key, { key, text, kind: mixed ? 'some' : signs[open[0][0]].kind, from: [] });
    by.get(key).from.push(from);
  }
  return [...by.values()].sort((a, b) => b.from.length - a.from.length || (a.text < b.text ? -1 : 1));
}

// isEveryone: all other pods that may send to anybody at all, two nodes of them at least, may send this.
function isEveryone(port, senders, to, nodes) {
  const others = [...senders].filter((f) => f !== to && !nodes[f].outside);
  const has = new Set(port.from);
  return others.length >= 2 && others.every((f) => has.has(f));
}

// edgesOf are those that are drawn: not what every pod may, not from a node to itself.
function edgesOf(nodes) {
  const edges = [];
  nodes.forEach((n, to) => n.ports.forEach((p, port) => {
    for (const from of p.from) if (from !== to && !(p.everyone && !nodes[from].outside)) edges.push({ from, to, port, kind: p.kind });
  }));
  return edges;
}
