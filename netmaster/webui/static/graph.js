// The graph: who may open what to whom. What everybody may is written on a node, and not drawn.

import { h, plural, replace, s } from './dom.js';
import { ends } from './filter.js';
import { box, heightOf, layout, path } from './layout.js';
import { emptyText, nobody, notEnforced } from './matrix.js';
import { modelOf, mostEdges } from './model.js';
import { endsOf, nameOf, target } from './signs.js';

const longName = 27, longPort = 28; // letters that a box has room for

export function create(app) {
  const note = h('p', { class: 'dim', id: 'graph-note' });
  const drawing = s('svg', { class: 'graph', role: 'group', 'aria-label': 'Who may open connections to whom', 'aria-describedby': 'graph-note', onkeydown: keydown });
  const zoomButtons = h('div', { class: 'zoom' },
    h('button', { type: 'button', 'aria-label': 'larger', onclick: () => zoom(1 / 1.25) }, '+'), h('button', { type: 'button', 'aria-label': 'smaller', onclick: () => zoom(1.25) }, '−'),
    h('button', { type: 'button', 'aria-label': 'all of it', onclick: () => fit() }, '⤢'));
  const frame = h('div', { class: 'frame' }, drawing, zoomButtons);
  const element = h('section', { class: 'graphs', 'aria-label': 'Graph' }, note, frame);
  let m = null, model = null, placed = null, seen = null, drawnFor = null, current = 0, boxes = [];

  function update() {
    m = app.loadMatrix();
    const shown = m.data ? ends(m.searched, app.state) : null;
    const none = !shown || !shown.from.length || !shown.to.length;
    frame.hidden = none;
    if (none) {
      drawnFor = null;
      replace(note, m.data ? nobody(app, m) : emptyText(app, m));
      return;
    }
    const key = [m.data.revision, m.version, m.key, app.state.ns, app.state.q].join('\n');
    if (key !== drawnFor) {
      const again = drawnFor && drawnFor.split('\n').slice(1).join() === key.split('\n').slice(1).join();
      drawnFor = key;
      model = modelOf(m.data, shown, m.signs);
      placed = layout(model.nodes, model.edges);
      current = Math.min(current, model.nodes.length - 1);
      draw();
      if (!again) fit();
    }
    app.announce(`${shown.from.length} × ${shown.to.length} of ${m.data.groups.length} groups`);
    mark();
  }

  function draw() {
    const { nodes, edges } = model;
    const few = edges.slice(0, mostEdges);
    replace(note, 'An arrow ends at what its source may open. What every pod may that may send at all is marked “everyone”, without arrows.',
      model.grouped && ` There are too many groups to draw: each box is a namespace; choose one to see into it.`,
      few.length < edges.length && ` Drawn are ${few.length} of ${edges.length} arrows: filter to see the others.`,
      m.data.uneven?.length && ` IPv4 and IPv6 differ for ${plural(m.data.uneven.length, 'pair')}: either is drawn.`,
      m.data.notEnforced?.length && ` ${notEnforced(m.data)}.`);
    boxes = nodes.map((n, i) => nodeBox(n, i));
    replace(drawing,
      s('defs', {}, ['all', 'some', 'lit'].map((kind) => s('marker', { id: `tip-${kind}`, class: kind, viewBox: '0 0 8 8', refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: 'auto' }, s('path', { d: 'M0 0L8 4L0 8z' })))),
      placed.restTop >= 0 && s('text', { class: 'section', x: 0, y: placed.restTop - 18 }, 'Without arrows'),
      s('g', { class: 'edges', 'aria-hidden': 'true' }, few.map(edgeLine)), s('g', { class: 'nodes' }, boxes));
    boxes.forEach((b, i) => b.setAttribute('tabindex', i === current ? 0 : -1));
  }

  function edgeLine(e) {
    const from = model.nodes[e.from], to = model.nodes[e.to];
    const d = path(placed.at[e.from], placed.at[e.to], e.port);
    const words = `${from.full} may open ${to.ports[e.port].text} to ${to.full}`;
    return s('g', { class: `edge ${e.kind}`, 'data-from': e.from, 'data-to': e.to, onclick: () => choose(e.from, e.to) },
      s('title', {}, words), s('path', { class: 'line', d, 'marker-end': `url(#tip-${e.kind === 'all' ? 'all' : 'some'})` }), s('path', { class: 'grip', d }));
  }

  function nodeBox(n, i) {
    const { x, y } = placed.at[i];
    const words = `${n.full}${n.note ? ', ' + n.note : ''}. ` + (n.ports.length ? n.ports.map((p) => `${p.everyone ? 'Everyone' : plural(p.from.length, 'sender')} may open ${p.text}`).join('. ') : 'Nobody reaches it') + '.';
    return s('g', { class: `node${n.outside ? ' outside' : ''}`, transform: `translate(${x} ${y})`, role: 'button', 'aria-label': words, 'data-at': i,
      onclick: () => { current = i; open(i); }, onfocus: () => light(i), onblur: () => light(-1), onpointerenter: () => light(i), onpointerleave: () => light(-1) },
      s('title', {}, `${n.full}${n.note ? ` (${n.note})` : ''}`),
      s('rect', { width: box.width, height: heightOf(n), rx: 5 }),
      s('text', { class: 'name', x: 10, y: 16 }, short(n.name, longName)), s('text', { class: 'space', x: 10, y: 30 }, short(n.isNamespace ? n.note : n.namespace + (n.note ? ` · ${n.note}` : ''), longPort + 4)),
      n.ports.map((p, k) => portLine(p, k, i)));
  }

  function portLine(p, k, i) {
    const y = box.header + k * box.port;
    const who = p.everyone ? 'everyone: ' : p.from.length === 1 && p.from[0] === i ? 'among themselves: ' : '';
    return s('g', { class: `port ${p.kind}${p.everyone ? ' everyone' : ''}`, transform: `translate(0 ${y})` },
      s('rect', { x: 0, y: 1, width: box.width, height: box.port - 2 }), s('text', { x: 10, y: 14 }, short(who + p.text, longPort)));
  }

  // light shows what a node has to do with; -1: nothing in particular.
  function light(i) {
    drawing.classList.toggle('lit', i >= 0);
    const near = new Set([i]);
    for (const e of drawing.querySelectorAll('.edge')) {
      const on = Number(e.dataset.from) === i || Number(e.dataset.to) === i;
      e.classList.toggle('on', on);
      if (on) near.add(Number(e.dataset.from)).add(Number(e.dataset.to));
    }
    boxes.forEach((b, at) => b.classList.toggle('on', near.has(at)));
  }

  function mark() {
    boxes.forEach((b, i) => b.classList.toggle('chosen', Boolean(app.state.at) && model.nodes[i].full === app.state.at));
  }

  function open(i) {
    const n = model.nodes[i];
    if (n.isNamespace && !n.outside) app.go({ ns: n.full, at: '', from: '', to: '' });
    else app.go({ at: n.full, from: '', to: '' });
  }

  function choose(from, to) {
    const [a, b] = [model.nodes[from], model.nodes[to]];
    if (a.isNamespace || b.isNamespace) {
      open(a.isNamespace && !a.outside ? from : to);
      return;
    }
    const pair = endsOf(m.data.groups, a.members[0], b.members[0]);
    if (pair) app.go({ from: pair.from, to: target(pair.to, app.state.port), at: '' });
  }

  function keydown(event) {
    if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault();
      open(current);
    } else if (event.key === '+' || event.key === '-') zoom(event.key === '+' ? 1 / 1.25 : 1.25);
    else if (event.key === '0') fit();
    else if (event.key.startsWith('Arrow')) {
      event.preventDefault();
      step({ ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key]);
    }
  }

  // step goes to the nearest box in a direction.
  function step([dx, dy]) {
    const here = placed.at[current];
    let best = -1, least = Infinity;
    placed.at.forEach((p, i) => {
      const along = (p.x - here.x) * dx + (p.y - here.y) * dy, aside = Math.abs((p.x - here.x) * dy) + Math.abs((p.y - here.y) * dx);
      if (along > 0 && along + 2 * aside < least) [best, least] = [i, along + 2 * aside];
    });
    if (best < 0) return;
    boxes[current].setAttribute('tabindex', -1);
    current = best;
    boxes[current].setAttribute('tabindex', 0);
    boxes[current].focus({ preventScroll: true });
    reveal(placed.at[current], heightOf(model.nodes[current]));
  }

  function look() { drawing.setAttribute('viewBox', `${seen.x} ${seen.y} ${seen.w} ${seen.h}`); }

  // fit shows all of it where that stays readable, else the upper left.
  function fit() {
    const w = frame.clientWidth || 1000, tall = frame.clientHeight || 600, pad = 24, least = 0.55;
    const scale = Math.max(least, Math.min(1.15, w / (placed.width + 2 * pad), tall / (placed.height + 2 * pad)));
    const all = [w / scale, tall / scale];
    const over = (size, room) => (size + 2 * pad > room ? -pad : (size - room) / 2);
    seen = { x: over(placed.width, all[0]), y: over(placed.height, all[1]), w: all[0], h: all[1] };
    look();
  }

  function zoom(by, at = [seen.x + seen.w / 2, seen.y + seen.h / 2]) {
    const w = Math.max(200, Math.min(seen.w * by, 4 * (placed.width + 400))), real = w / seen.w;
    seen = { x: at[0] - (at[0] - seen.x) * real, y: at[1] - (at[1] - seen.y) * real, w, h: seen.h * real };
    look();
  }

  function reveal({ x, y }, height) {
    if (x < seen.x) seen.x = x - 20;
    if (y < seen.y) seen.y = y - 20;
    if (x + box.width > seen.x + seen.w) seen.x = x + box.width + 20 - seen.w;
    if (y + height > seen.y + seen.h) seen.y = y + height + 20 - seen.h;
    look();
  }

  let held = null;
  drawing.addEventListener('pointerdown', (e) => { if (!e.target.closest('.node, .edge')) { held = [e.clientX, e.clientY]; drawing.setPointerCapture(e.pointerId); } });
  drawing.addEventListener('pointerup', () => { held = null; });
  drawing.addEventListener('pointermove', (e) => {
    if (!held) return;
    const scale = seen.w / drawing.clientWidth;
    seen.x -= (e.clientX - held[0]) * scale;
    seen.y -= (e.clientY - held[1]) * scale;
    held = [e.clientX, e.clientY];
    look();
  });
  drawing.addEventListener('wheel', (e) => {
    e.preventDefault();
    const r = drawing.getBoundingClientRect();
    zoom(Math.exp(Math.max(-0.5, Math.min(0.5, e.deltaY / 400))), [seen.x + ((e.clientX - r.left) / r.width) * seen.w, seen.y + ((e.clientY - r.top) / r.height) * seen.h]);
  }, { passive: false });

  return { element, update, busy: () => !m?.data && m?.loading, resized: () => placed && seen && fit() };
}

const short = (text, most) => (text.length > most ? text.slice(0, most - 1) + '…' : text);

// relations are what a group may open, and what may be opened to it, for the list beside the graph.
export function relations(m, name, shown) {
  const i = m.data.groups.findIndex((g) => g.name === name);
  if (i < 0) return null;
  const open = (from, to) => m.signs[m.data.cells[from][to]];
  const list = (others, pair) => others.filter((j) => j !== i || (m.data.groups[i].pods?.length ?? 0) > 1).map((j) => ({ j, name: nameOf(m.data.groups[j]), sign: open(...pair(j)), pair: endsOf(m.data.groups, ...pair(j)) }))
    .filter((r) => r.pair);
  return { group: m.data.groups[i], labels: m.data.labels?.[i] ?? [], into: list(shown.from, (j) => [j, i]), out: list(shown.to, (j) => [i, j]) };
}
