// What the nodes have denied of late, the newest first.

import { ask } from './api.js';
import { h, helpLink, plural, replace } from './dom.js';
import { read } from './filter.js';
import { target } from './signs.js';

const again = 2000; // ms
const most = 300; // rows
const spans = [['1m', 'a minute'], ['10m', 'ten minutes'], ['1h', 'an hour'], ['24h', 'a day']];

export function create(app) {
  const note = h('p', { class: 'dim' });
  const within = h('select', { onchange: load, 'aria-label': 'How far back' }, spans.map(([value, name]) => h('option', { value, selected: value === '10m' }, name)));
  const hold = h('button', { type: 'button', 'aria-pressed': 'false', onclick: toggle }, 'Hold');
  const body = h('tbody', { onkeydown: keydown });
  const table = h('div', { class: 'scroll' }, h('table', { class: 'list' },
    h('thead', {}, h('tr', {}, ['Last', 'From', 'To', 'Port', 'Tries', 'Denied', 'Because'].map((t) => h('th', { scope: 'col' }, t)))), body));
  const nodes = h('ul', { class: 'plain' });
  const element = h('section', { class: 'drops', 'aria-label': 'Drops' }, h('div', { class: 'bar' }, note, h('label', {}, 'within ', within), hold), nodes, table);
  let answer = null, error = null, timer = 0, held = false, left = false, request = 0, shownFor = [];
  load();

  async function load() {
    clearTimeout(timer);
    const mine = ++request;
    try {
      const fresh = await ask('drops', { within: within.value });
      if (mine !== request || left || held) return;
      if (JSON.stringify(fresh.drops) !== JSON.stringify(answer?.drops) || JSON.stringify(fresh.nodes) !== JSON.stringify(answer?.nodes)) answer = fresh;
      error = null;
    } catch (failed) {
      error = failed;
    }
    if (mine !== request || left) return;
    app.render();
    if (!held) timer = setTimeout(load, document.hidden ? 10 * again : error ? 3 * again : again);
  }

  // toggle holds the list as it is, to be read.
  function toggle() {
    held = !held;
    hold.textContent = held ? 'Go on' : 'Hold';
    hold.setAttribute('aria-pressed', String(held));
    update();
    if (!held) load();
  }

  function update() {
    const { ns, q } = app.state;
    const now = [answer, error?.message, ns, q, held];
    if (now.every((v, i) => v === shownFor[i])) return;
    shownFor = now;
    if (!answer) {
      table.hidden = true;
      replace(note, error ? ['There is no list: ', error.message, '.', helpLink(error.help)] : 'Asking the nodes …');
      return;
    }
    const list = answer.drops.toReversed().filter((d) => fits(d, ns, read(q)));
    table.hidden = !list.length;
    replace(note, error ? ['As it was; now there is no answer: ', error.message, '.', helpLink(error.help)] : !answer.drops.length ? 'Nothing was denied.' : !list.length ? 'Nothing matches the filter.' :
      `${plural(list.length, 'way')} denied${list.length > most ? `, the latest ${most} are shown` : ''}${held ? '; held' : ''}`);
    app.announce(`${list.length} of ${answer.drops.length}`);
    replace(nodes, answer.nodes.flatMap(nodeNotes).map((t) => h('li', { class: 'dim' }, t)));
    const focused = body.contains(document.activeElement) ? document.activeElement.closest('tr')?.dataset.key : '';
    replace(body, list.slice(0, most).map(line));
    if (focused) [...body.rows].find((r) => r.dataset.key === focused)?.querySelector('button').focus();
  }

  function line(d) {
    const from = d.from.pod || d.from.address, to = d.to.pod || d.to.address;
    const port = d.port ? `${d.port}/${d.protocol}` : d.protocol;
    const open = () => app.go({ from, to: d.port ? target(to, port) : d.protocol === 'ICMP' ? `${to}/icmp` : to });
    return h('tr', { 'data-key': [d.node, from, to, port, d.reason].join(' ') },
      h('td', { class: 'number' }, h('time', { datetime: d.last, title: `${d.first} to ${d.last}` }, new Date(d.last).toLocaleTimeString())),
      h('th', { scope: 'row' }, d.reason === 'forged' ? from : h('button', { type: 'button', class: 'link', title: 'why', onclick: open }, from)), h('td', { title: d.to.address }, to), h('td', {}, port),
      h('td', { class: 'number', title: plural(d.packets, 'packet') }, d.connections || d.packets),
      h('td', {}, h('span', { class: 'badge bad' }, d.reason === 'forged' ? '✗ forged' : `✗ ${d.reason}`), h('span', { class: 'why' }, d.node)), h('td', { class: 'reason' }, because(d)));
  }

  function keydown(event) {
    const step = { ArrowDown: 'nextElementSibling', ArrowUp: 'previousElementSibling' }[event.key];
    const row = event.target.closest('tr');
    if (!step || !row) return;
    event.preventDefault();
    row[step]?.querySelector('button')?.focus();
  }

  return { element, update, busy: () => !answer && !error, leave: () => { left = true; clearTimeout(timer); } };
}

function because(d) {
  if (d.reason === 'forged') return `${d.pod || 'a pod'} sent it from an address that is not its own`;
  return [d.policies?.length > 0 && ['isolated by ', d.policies.slice(0, 3).join(', '), d.policies.length > 3 && ` and ${d.policies.length - 3} more`],
    d.failed && h('span', { class: 'why' }, `${d.rule}: ${d.failed}`), d.remedy && h('span', { class: 'why' }, `it would pass with ${d.remedy}`), d.note && h('span', { class: 'why' }, d.note)];
}

function fits(d, ns, terms) {
  const ends = [d.from.pod ?? '', d.to.pod ?? ''];
  if (ns && !ends.some((p) => p.startsWith(ns + '/'))) return false;
  const text = { from: `${d.from.pod ?? ''} ${d.from.address}`, to: `${d.to.pod ?? ''} ${d.to.address}` };
  text.both = `${text.from} ${text.to} ${d.port ?? ''}/${d.protocol} ${d.node} ${d.reason} ${(d.policies ?? []).join(' ')}`;
  return terms.every((t) => text[t.end].toLowerCase().includes(t.word) !== t.out);
}

function nodeNotes(n) {
  return [n.problem && `${n.node} does not say: ${n.problem}`, n.untold > 0 && `${n.node}: ${plural(n.untold, 'packet')} more were denied than it looked at`,
    n.left > 0 && `${n.node}: ${plural(n.left, 'older record')} left out`].filter(Boolean);
}
