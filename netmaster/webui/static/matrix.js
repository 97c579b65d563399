// The matrix: a row is where packets come from, a column where they go. Only what is in sight is in the document, so that a thousand
// groups scroll as ten do.

import { h, helpLink, plural, replace } from './dom.js';
import { ends } from './filter.js';
import { endsOf, nameOf, splitTarget, target, unjudged } from './signs.js';

const cell = 24, chunk = 4; // pixels; cells that come and go together

const blank = h('div', { role: 'gridcell' });

export function create(app) {
  const note = h('p', { class: 'dim', id: 'matrix-note' });
  const layer = h('div', { class: 'layer', role: 'presentation' });
  const grid = h('div', { class: 'grid', role: 'grid', tabindex: 0, id: 'grid', 'aria-label': 'Who reaches whom: rows send, columns receive', 'aria-describedby': 'matrix-note',
    onscroll: () => requestAnimationFrame(draw), onkeydown: keydown, onclick: click, onpointerover: tell }, layer);
  const legend = h('ul', { class: 'legend', 'aria-label': 'What the signs mean' });
  const element = h('section', { class: 'matrix', 'aria-label': 'Matrix' }, note, grid, legend);
  const rows = new Map(); // by number, those that are in the document
  let m = null, shown = { from: [], to: [] }, active = [0, 0], wide = 200, tall = 120, drawnFor = '', shownFor = [], chosen = null, chosenFor = '';

  function update() {
    m = app.loadMatrix();
    if (!m.data) {
      grid.hidden = legend.hidden = true;
      shownFor = [];
      replace(note, emptyText(app, m));
      return;
    }
    const now = [m.data, app.state.ns, app.state.q];
    if (now.every((v, i) => v === shownFor[i])) {
      follow();
      return;
    }
    [shownFor, chosenFor] = [now, ''];
    shown = ends(m.searched, app.state);
    measure();
    active = [Math.min(active[0], shown.from.length - 1), Math.min(active[1], shown.to.length - 1)].map((n) => Math.max(0, n));
    const none = !shown.from.length || !shown.to.length;
    grid.hidden = legend.hidden = none;
    replace(note, none ? nobody(app, m) : noteText(app, m, shown));
    app.announce(`${shown.from.length} × ${shown.to.length} of ${m.data.groups.length} groups`);
    grid.setAttribute('aria-rowcount', shown.from.length + 1);
    grid.setAttribute('aria-colcount', shown.to.length + 1);
    showLegend();
    drawnFor = '';
    follow();
  }

  // follow goes to the cell that the address has chosen, once.
  function follow() {
    const { from, to } = app.state;
    const now = from && to ? `${from} ${to}` : '';
    if (now === chosenFor) {
      draw();
      return;
    }
    chosenFor = now;
    const at = (name, list) => list.findIndex((i) => m.data.groups[i].pods?.includes(name) || m.data.groups[i].sample === name);
    const [r, c] = [at(from, shown.from), at(splitTarget(to).name, shown.to)];
    chosen = now && r >= 0 && c >= 0 ? [r, c] : null;
    if (!chosen) {
      draw();
      return;
    }
    active = chosen;
    reveal();
  }

  function measure() {
    const longest = (list) => list.reduce((n, i) => Math.max(n, nameOf(m.data.groups[i]).length), 8);
    wide = Math.min(320, longest(shown.from) * 7 + 24);
    tall = Math.min(220, longest(shown.to) * 6.4 + 20);
    layer.style.width = `${wide + shown.to.length * cell}px`;
    layer.style.height = `${tall + shown.from.length * cell}px`;
    grid.style.setProperty('--wide', `${wide}px`);
    grid.style.setProperty('--tall', `${tall}px`);
  }

  const inSight = (offset, size, count) => {
    const first = Math.floor(offset / cell / chunk) * chunk;
    return [Math.min(first, count), Math.min(count, Math.ceil((offset + size) / cell / chunk) * chunk)];
  };

  // draw adds what came into sight and takes away what left it; everything anew only where columns do.
  function draw() {
    if (!m?.data || grid.hidden) return;
    const [r0, r1] = inSight(grid.scrollTop, (grid.clientHeight || 600) - tall, shown.from.length);
    const [c0, c1] = inSight(grid.scrollLeft, (grid.clientWidth || 800) - wide, shown.to.length);
    const columns = [c0, c1].join();
    if (columns !== drawnFor) {
      drawnFor = columns;
      rows.clear();
      replace(layer, header(c0, c1));
    }
    for (const [r, line] of rows) {
      if (r >= r0 && r < r1) continue;
      line.remove();
      rows.delete(r);
    }
    let next = layer.firstChild.nextSibling;
    for (let r = r0; r < r1; r++) {
      if (!rows.has(r)) rows.set(r, row(r, c0, c1));
      const line = rows.get(r);
      if (line === next) next = next.nextSibling;
      else layer.insertBefore(line, next);
    }
    highlight();
  }

  function highlight() {
    const [r, c] = active;
    for (const e of layer.querySelectorAll('[data-active]')) e.removeAttribute('data-active');
    for (const id of [`cell-${r}-${c}`, `row-${r}`, `column-${c}`]) layer.querySelector('#' + id)?.setAttribute('data-active', '');
    layer.querySelector('[data-chosen]')?.removeAttribute('data-chosen');
    if (chosen) layer.querySelector(`#cell-${chosen[0]}-${chosen[1]}`)?.setAttribute('data-chosen', '');
    grid.setAttribute('aria-activedescendant', `cell-${r}-${c}`);
  }

  function header(c0, c1) {
    const columns = [];
    for (let c = c0; c < c1; c++) {
      const head = h('div', { class: 'column-head', role: 'columnheader', id: `column-${c}`, 'aria-colindex': c + 2 }, h('span', {}, nameOf(m.data.groups[shown.to[c]])));
      head.style.left = `${wide + c * cell}px`;
      columns.push(head);
    }
    return h('div', { class: 'heads', role: 'row', 'aria-rowindex': 1 }, h('div', { class: 'corner', role: 'columnheader', 'aria-colindex': 1 }, 'from ↓   to →'), columns);
  }

  function row(r, c0, c1) {
    const i = shown.from[r], name = nameOf(m.data.groups[i]);
    const cells = [];
    for (let c = c0; c < c1; c++) cells.push(square(r, c, i, shown.to[c]));
    const line = h('div', { class: 'row', role: 'row', 'aria-rowindex': r + 2 }, h('div', { class: 'row-head', role: 'rowheader', id: `row-${r}`, 'aria-colindex': 1, title: name }, name), cells);
    line.style.top = `${tall + r * cell}px`;
    return line;
  }

  function square(r, c, i, j) {
    const sign = unjudged(m.data.groups, i, j) ? { sign: ' ', kind: 'blank', text: 'not judged' } : m.signs[m.data.cells[i][j]];
    const uneven = m.uneven.has(`${i},${j}`);
    const text = `${nameOf(m.data.groups[i])} to ${nameOf(m.data.groups[j])}: ${sign.text}${uneven ? '; IPv4 and IPv6 differ' : ''}`;
    const e = blank.cloneNode();
    e.className = `cell ${sign.kind}${i === j ? ' self' : ''}`;
    e.id = `cell-${r}-${c}`;
    e.ariaColIndex = c + 2;
    e.ariaLabel = text;
    e.textContent = uneven ? '≠' : sign.sign;
    e.style.left = `${wide + c * cell}px`;
    return e;
  }

  function showLegend() {
    m.uneven = new Set((m.data.uneven ?? []).map((p) => p.join()));
    const counts = new Int32Array(m.signs.length);
    const outside = new Set(m.data.groups.flatMap((g, i) => (g.pods?.length ? [] : [i])));
    for (const i of shown.from) {
      const row = m.data.cells[i], out = outside.has(i);
      for (const j of shown.to) if (!out || !outside.has(j)) counts[row[j]]++;
    }
    const list = [...counts.entries()].filter(([, n]) => n).sort((a, b) => b[1] - a[1]);
    const most = 24;
    replace(legend, list.slice(0, most).map(([v, n]) => h('li', {}, h('span', { class: `key ${m.signs[v].kind}`, 'aria-hidden': 'true' }, m.signs[v].sign), ` ${m.signs[v].text} `, h('span', { class: 'dim' }, n.toLocaleString('en')))),
      list.length > most && h('li', { class: 'dim' }, `and ${list.length - most} more: point at a cell, or choose a port`));
  }

  function reveal() {
    const [r, c] = active;
    const top = r * cell, left = c * cell;
    if (top < grid.scrollTop) grid.scrollTop = top;
    if (top + cell > grid.scrollTop + grid.clientHeight - tall) grid.scrollTop = top + cell - grid.clientHeight + tall;
    if (left < grid.scrollLeft) grid.scrollLeft = left;
    if (left + cell > grid.scrollLeft + grid.clientWidth - wide) grid.scrollLeft = left + cell - grid.clientWidth + wide;
    draw();
  }

  function tell(event) {
    const e = event.target.closest('.cell');
    if (e) e.title = e.getAttribute('aria-label');
  }

  function keydown(event) {
    const [r, c] = active, rows = shown.from.length, columns = shown.to.length;
    const page = Math.max(1, Math.floor((grid.clientHeight - tall) / cell) - 1);
    const steps = { ArrowUp: [r - 1, c], ArrowDown: [r + 1, c], ArrowLeft: [r, c - 1], ArrowRight: [r, c + 1], PageUp: [r - page, c], PageDown: [r + page, c],
      Home: [event.ctrlKey ? 0 : r, 0], End: [event.ctrlKey ? rows - 1 : r, columns - 1] };
    if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault();
      choose(r, c);
      return;
    }
    const to = steps[event.key];
    if (!to) return;
    event.preventDefault();
    active = [Math.max(0, Math.min(rows - 1, to[0])), Math.max(0, Math.min(columns - 1, to[1]))];
    reveal();
  }

  function click(event) {
    const e = event.target.closest('.cell');
    if (!e) return;
    active = e.id.split('-').slice(1).map(Number);
    highlight();
    choose(...active);
  }

  function choose(r, c) {
    const pair = endsOf(m.data.groups, shown.from[r], shown.to[c]);
    if (pair) app.go({ from: pair.from, to: target(pair.to, app.state.port) });
    else app.announce('nobody judges what is outside on both ends');
  }

  return { element, update, busy: () => !m?.data && m?.loading, resized: draw };
}

export function emptyText(app, m) {
  if (m.error?.code === 429) return [m.error.message, '. Type a namespace above.'];
  if (m.error) return ['There is no matrix: ', m.error.message, '.', helpLink(m.error.help)];
  return app.away ? 'netmaster does not answer.' : 'Asking who reaches whom …';
}

export function nobody(app, m) {
  if (!m.data.groups.length) return 'There are no pods.';
  return 'Nothing matches the filter.';
}

const maxNamed = 10;

// notEnforced names the pods that Flowkeep did not attach, and the remedy.
export function notEnforced({ notEnforced: pods, remedy }) {
  const more = pods.length > maxNamed ? ` and ${pods.length - maxNamed} more` : '';
  return `Not wired by Flowkeep, their side of each cell is not enforced: ${pods.slice(0, maxNamed).join(', ')}${more}${remedy ? `: ${remedy}` : ''}`;
}

export function noteText(app, m, shown) {
  const parts = [`Revision ${m.data.revision}.`, m.data.port ? ` ■ means ${m.data.port} is allowed.` : ' A cell tells what is allowed.', ' Pods that no policy can tell apart are one row.'];
  if (m.data.uneven?.length) parts.push(` ${plural(m.data.uneven.length, 'cell')} with ≠: IPv4 and IPv6 differ, either is counted.`);
  if (m.data.apart?.length) parts.push(` No ends of their own (hostNetwork, finished, without an address): ${plural(m.data.apart.length, 'pod')}.`);
  if (m.data.notEnforced?.length) parts.push(h('strong', {}, ` ${notEnforced(m.data)}.`));
  if (!m.data.labels) parts.push(' There are too many pods to search all of their labels: those that policies name are searched.');
  return parts;
}
