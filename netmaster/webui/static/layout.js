// Where the nodes of the graph stand: columns from those who only send to those who only receive. Pure, and the same for the same graph.

export const box = { width: 208, header: 38, port: 20, foot: 6, columnGap: 96, rowGap: 16, perColumn: 16, sectionGap: 56 };

export const heightOf = (node) => box.header + node.ports.length * box.port + (node.ports.length ? box.foot : 0);

// layout gives each node x and y, and the whole its size.
export function layout(nodes, edges) {
  const drawn = new Set(edges.flatMap((e) => [e.from, e.to]));
  const rank = ranks(nodes.length, edges);
  const columns = split(order(columnsOf(nodes, rank, drawn), nodes, edges), box.perColumn);
  const at = nodes.map(() => ({ x: 0, y: 0 }));
  const tallest = Math.max(0, ...columns.map((c) => columnHeight(c, nodes)));
  columns.forEach((column, c) => {
    let y = (tallest - columnHeight(column, nodes)) / 2;
    for (const n of column) {
      at[n] = { x: c * (box.width + box.columnGap), y };
      y += heightOf(nodes[n]) + box.rowGap;
    }
  });
  let width = Math.max(0, columns.length * (box.width + box.columnGap) - box.columnGap);
  const rest = nodes.map((_, i) => i).filter((i) => !drawn.has(i)).sort((a, b) => compare(nodes[a], nodes[b]));
  const below = tallest ? tallest + box.sectionGap : 0;
  const size = shelve(rest, nodes, at, Math.max(width, 4 * (box.width + 24)), below);
  width = Math.max(width, size.width);
  return { at, width, height: rest.length ? size.bottom : tallest, restTop: rest.length && tallest ? below : -1 };
}

const compare = (a, b) => (a.namespace === b.namespace ? (a.full < b.full ? -1 : 1) : a.namespace < b.namespace ? -1 : 1);

function columnHeight(column, nodes) {
  return column.reduce((sum, n) => sum + heightOf(nodes[n]) + box.rowGap, -box.rowGap);
}

// shelve puts nodes without edges in rows as wide as the rest.
function shelve(rest, nodes, at, wide, top) {
  const gap = 24;
  let x = 0, y = top, tall = 0, width = 0;
  for (const n of rest) {
    if (x && x + box.width > wide) [x, y, tall] = [0, y + tall + box.rowGap, 0];
    at[n] = { x, y };
    width = Math.max(width, x + box.width);
    tall = Math.max(tall, heightOf(nodes[n]));
    x += box.width + gap;
  }
  return { width, bottom: y + tall };
}

// ranks are longest ways through the graph, without the few edges that go back in the order of flow.
export function ranks(size, edges) {
  const place = new Array(size);
  const sequence = flow(size, edges);
  sequence.forEach((n, i) => { place[n] = i; });
  const out = neighbours(size, edges.filter((e) => place[e.from] < place[e.to]), 'from', 'to');
  const rank = new Array(size).fill(0);
  for (const n of sequence) for (const to of out[n]) rank[to] = Math.max(rank[to], rank[n] + 1);
  return rank;
}

function neighbours(size, edges, from, to) {
  const list = Array.from({ length: size }, () => new Set());
  for (const e of edges) if (e.from !== e.to) list[e[from]].add(e[to]);
  return list;
}

// flow puts sources first and targets last, and cuts circles where they give most (Eades, Lin and Smyth): without circles no edge goes back.
export function flow(size, edges) {
  const out = neighbours(size, edges, 'from', 'to'), into = neighbours(size, edges, 'to', 'from');
  const gives = out.map((s) => s.size), takes = into.map((s) => s.size);
  const left = new Set(out.keys()), first = [], last = [];
  const ready = { sources: [...left].filter((n) => !takes[n]), sinks: [...left].filter((n) => !gives[n]) };
  const take = (n, list) => {
    left.delete(n);
    list.push(n);
    for (const to of out[n]) if (--takes[to] === 0 && left.has(to)) ready.sources.push(to);
    for (const from of into[n]) if (--gives[from] === 0 && left.has(from)) ready.sinks.push(from);
  };
  while (left.size) {
    for (let n; (n = ready.sinks.pop()) !== undefined;) if (left.has(n)) take(n, last);
    for (let n; (n = ready.sources.pop()) !== undefined;) if (left.has(n)) take(n, first);
    if (ready.sinks.length || !left.size) continue;
    let best = -1;
    for (const n of left) if (best < 0 || gives[n] - takes[n] > gives[best] - takes[best]) best = n;
    take(best, first);
  }
  return [...first, ...last.reverse()];
}

function columnsOf(nodes, rank, drawn) {
  const columns = [];
  nodes.forEach((_, i) => { if (drawn.has(i)) (columns[rank[i]] ??= []).push(i); });
  return columns.filter(Boolean).map((c) => c.sort((a, b) => compare(nodes[a], nodes[b])));
}

// order moves nodes towards the middle of those they are tied to, there and back twice, namespaces together where it ties.
function order(columns, nodes, edges) {
  const place = new Map();
  const number = () => columns.forEach((c) => c.forEach((n, i) => place.set(n, i / c.length)));
  const tied = new Map();
  for (const e of edges) for (const [a, b] of [[e.from, e.to], [e.to, e.from]]) (tied.get(a) ?? tied.set(a, []).get(a)).push(b);
  const middle = (n) => { const list = tied.get(n); return list.reduce((sum, m) => sum + place.get(m), 0) / list.length; };
  number();
  for (let sweep = 0; sweep < 4; sweep++) {
    for (const c of sweep % 2 ? columns.toReversed() : columns) {
      const at = new Map(c.map((n) => [n, middle(n)]));
      c.sort((a, b) => at.get(a) - at.get(b) || compare(nodes[a], nodes[b]));
      number();
    }
  }
  return columns;
}

function split(columns, most) {
  return columns.flatMap((c) => {
    const parts = Math.ceil(c.length / most), size = Math.ceil(c.length / parts);
    return Array.from({ length: parts }, (_, i) => c.slice(i * size, (i + 1) * size));
  });
}

// path is the way of an edge from the right side of its source to a port on the left of its target.
export function path(from, to, port) {
  const x1 = from.x + box.width, y1 = from.y + box.header / 2;
  const x2 = to.x, y2 = to.y + box.header + port * box.port + box.port / 2;
  const bend = x2 > x1 ? Math.max(40, (x2 - x1) / 2) : 90 + Math.min(120, Math.abs(y2 - y1) / 4);
  return `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
}
