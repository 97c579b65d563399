// What is told of a cell, an arrow or a box, beside the view.

import { ask } from './api.js';
import { byID, h, helpLink, plural, replace } from './dom.js';
import { ends } from './filter.js';
import { relations } from './graph.js';
import { versionOf } from './overview.js';
import { portOf } from './state.js';
import { splitTarget, target } from './signs.js';

let shownFor = '', proof = false, request = 0, opener = null, asked = '', told = '';

export function update(app) {
  const { from, to, at, view } = app.state;
  const panel = byID('panel');
  const pair = from && to, box = at && view === 'graph';
  const revision = pair || box ? versionOf(app.overview) : '';
  const key = pair ? `pair ${from} ${to}` : box ? `box ${at} ${app.state.ns} ${app.state.q} ${app.matrix.data?.revision} ${app.matrix.key}` : '';
  if (!key) {
    if (!panel.hidden) hide(panel);
    return;
  }
  const opened = panel.hidden;
  if (opened) opener = document.activeElement;
  panel.hidden = false;
  if (opened) dispatchEvent(new Event('resize'));
  if (box && !pair) {
    if (key !== shownFor) showBox(app, panel, at);
    [shownFor, asked] = [key, ''];
    return;
  }
  if (key !== shownFor) proof = false;
  const question = `${key} ${proof} ${revision}`;
  if (question === asked) return;
  const anew = key !== shownFor;
  [shownFor, asked] = [key, question];
  explain(app, panel, anew);
}

export function close(app) {
  app.go({ from: '', to: '', at: '' });
}

function hide(panel) {
  const back = panel.contains(document.activeElement) || document.activeElement === document.body;
  panel.hidden = true;
  shownFor = asked = '';
  replace(panel);
  dispatchEvent(new Event('resize'));
  if (back) (opener?.isConnected ? opener : byID('main').querySelector('[tabindex="0"]'))?.focus();
}

function heading(app, text) {
  return h('div', { class: 'panel-head' }, h('h2', { tabindex: -1 }, text), h('button', { type: 'button', class: 'quiet', 'aria-label': 'Close', onclick: () => close(app) }, '✕'));
}

async function explain(app, panel, anew) {
  const mine = ++request;
  const { from, to } = app.state;
  if (anew) {
    replace(panel, heading(app, `${from} → ${to}`), h('p', { class: 'dim' }, 'Asking why …'));
    panel.querySelector('h2').focus();
  }
  panel.setAttribute('aria-busy', 'true');
  let answer, content, now;
  try {
    answer = await ask('explain', { from, to, proof: proof ? '1' : '' });
    now = JSON.stringify({ ...answer, revision: 0 });
  } catch (error) {
    [now, asked] = [error.message, '']; // to be asked again
    content = h('p', { class: 'empty' }, 'There is no explanation: ', error.message, '.', helpLink(error.help));
  }
  if (mine !== request || panel.hidden) return;
  if (!anew && now === told) { // whoever reads it is left alone
    panel.removeAttribute('aria-busy');
    return;
  }
  told = now;
  content ??= explanation(app, answer);
  const focused = panel.contains(document.activeElement);
  const place = document.activeElement?.dataset?.keep;
  panel.removeAttribute('aria-busy');
  const top = panel.scrollTop;
  replace(panel, heading(app, `${from} → ${to}`), pairForm(app, from, to), content);
  panel.scrollTop = anew ? 0 : top;
  if (focused) (place && panel.querySelector(`[data-keep="${place}"]`) || panel.querySelector('h2')).focus();
}

// pairForm asks for another pair, or at another port: whatever netctl explain takes.
function pairForm(app, from, to) {
  const { name, port, protocol } = splitTarget(to);
  const field = (keep, value, size, more = {}) => h('input', { size, value, 'data-keep': keep, spellcheck: false, ...more });
  const [source, end] = [field('from', from, 22, { title: 'a pod, an address, a node, or world' }), field('to', name, 22, { title: 'the same, or a Service: svc/namespace/name' })];
  const at = field('port', port + (port && protocol && protocol !== 'tcp' ? `/${protocol}` : ''), 9, { placeholder: 'any' });
  const portText = () => portOf(at.value) ?? at.value.trim(); // a port's name is the pod's or the Service's
  const submit = (e) => {
    e.preventDefault();
    if (source.value.trim() && end.value.trim()) app.go({ from: source.value.trim(), to: target(end.value.trim(), portText()) });
  };
  return h('form', { class: 'pair', onsubmit: submit }, h('label', {}, 'From ', source), h('label', {}, 'To ', end), h('label', {}, 'Port ', at), h('button', { 'data-keep': 'ask' }, 'Explain'),
    h('button', { type: 'button', class: 'quiet', title: `${name} → ${from}`, 'data-keep': 'turn', onclick: () => app.go({ from: name, to: target(from, portText()) }) }, '⇄ the other way'));
}

function explanation(app, x) {
  const wrong = x.ways.flatMap((w) => w.disagreements);
  return [
    wrong.length > 0 && h('div', { class: 'disagree', role: 'alert' }, h('strong', {}, 'A switch does not do what the policies say'), h('ul', {}, wrong.map((d) => h('li', {}, d)))),
    x.service && h('p', {}, 'By the Service ', h('strong', {}, x.service), ' to each kind of pod behind it:', (x.notes ?? []).map((n) => h('span', { class: 'why' }, n))),
    (x.ports ?? []).map(servicePort),
    x.service && !x.ways.length && h('p', { class: 'denied' }, 'There is no pod behind it.'),
    x.ways.map((w) => wayText(app, w)),
    x.problems.length > 0 && h('ul', { class: 'problems' }, x.problems.slice(0, 20).map((p) => h('li', {}, p)), x.problems.length > 20 && h('li', {}, `and ${x.problems.length - 20} more`)),
    !proof && h('p', {}, h('button', { type: 'button', 'data-keep': 'prove', onclick: () => { proof = true; update(app); } }, 'Prove it on the switch'),
      h('span', { class: 'dim' }, ' asks Open vSwitch which flows exactly this packet meets; nothing is sent')),
  ];
}

// servicePort is the picture of a port: its endpoints, and the verdict on each.
function servicePort(p) {
  const line = (b) => h('tr', {}, h('th', { scope: 'row' }, b.name || b.address, h('span', { class: 'why' }, b.name ? b.address : '', b.node ? ` on ${b.node}` : '')),
    h('td', {}, b.state), h('td', { class: 'number' }, b.share ?? ''), h('td', {}, b.verdict ? verdict({ ...b, allowed: b.verdict === 'allowed' }) : h('span', { class: 'dim' }, b.why)));
  return h('section', { class: 'side' }, h('h4', {}, p.title), p.refused && h('p', { class: 'denied' }, p.refused),
    p.backends.length > 0 && h('div', { class: 'scroll' }, h('table', { class: 'list' }, h('thead', {}, h('tr', {}, ['Endpoint', 'State', 'Share', 'Verdict'].map((t) => h('th', { scope: 'col' }, t)))), h('tbody', {}, p.backends.map(line)))),
    p.more > 0 && h('p', { class: 'dim' }, `and ${plural(p.more, 'more endpoint')}`), (p.led ?? []).map((l) => h('p', { class: 'why' }, l)));
}

// verdict is that of policies, with the reason if it is no fact.
function verdict({ allowed, caveat, unproved }) {
  if (!caveat) return h('span', { class: `verdict ${allowed ? 'good' : 'bad'}` }, allowed ? '✓ allowed' : '✗ denied');
  return h('span', { class: `verdict ${allowed && unproved ? 'good' : 'bad'}` }, `policies ${allowed ? 'allow' : 'deny'} it; ${caveat}`);
}

function wayText(app, w) {
  const title = h('h3', {}, verdict(w), ` ${w.packet} `, h('span', { class: 'dim' }, `IPv${w.family}`));
  const ends = h('p', { class: 'dim' }, `${w.from.address}${w.from.node ? ` on ${w.from.node}` : ''} → ${w.to.address}${w.to.node ? ` on ${w.to.node}` : ''}`);
  if (w.asBefore) return h('section', { class: 'way' }, title, ends, h('p', {}, 'for the same reasons'), traces(w));
  return h('section', { class: 'way' }, title, ends,
    w.portChosen && h('p', {}, 'Without a port: allowed between them is ', h('strong', {}, w.connections), '.'),
    w.always ? h('p', {}, w.always) : w.sides.map((s) => sideText(app, s)), traces(w));
}

function sideText(app, side) {
  return h('section', { class: 'side' }, h('h4', {}, side.direction), h('p', { class: side.allowed ? '' : 'denied' }, side.summary),
    !side.allowed && [side.policies?.map((p) => reportText(app, p)), side.more > 0 && h('p', { class: 'dim' }, `and ${plural(side.more, 'more policy', 'more policies')}`)],
    side.allowed && side.policies?.length > 0 && h('details', {}, h('summary', {}, 'its rules'), side.policies.map((p) => reportText(app, p))),
    side.remedies?.length > 0 && h('div', { class: 'remedies' }, h('h5', {}, 'It would pass with any of'), h('ul', {}, side.remedies.map((r) => h('li', {}, r)))));
}

function reportText(app, p) {
  const link = h('a', { href: `#policies?policy=${encodeURIComponent(p.policy)}` }, p.policy);
  if (!p.rules.length) return h('div', { class: 'report' }, h('p', {}, link, ' isolates and has no rules'));
  return h('div', { class: 'report' }, h('p', {}, link), p.rules.map((r) => h('div', { class: 'rule' }, h('span', { class: `mark ${r.allows ? 'good' : 'bad'}` }, r.allows ? '✓' : '✗'), ` ${r.name}`,
    h('ul', {}, r.entries.map((e) => h('li', {}, h('span', { class: `mark ${e.matches ? 'good' : 'bad'}` }, h('span', { 'aria-hidden': 'true' }, e.matches ? '✓' : '✗'), h('span', { class: 'unseen' }, e.matches ? 'matches: ' : 'does not match: ')), ` ${e.text}`, e.why && h('span', { class: 'why' }, e.why)))))));
}

function traces(w) {
  return w.traces.map((t) => h('details', { class: 'trace', open: true }, h('summary', {}, `Open vSwitch of ${t.node}: `, t.problem ? 'no proof' : t.out),
    t.problem ? h('p', {}, t.problem) : h('ol', {}, t.steps.map((s) => h('li', {}, h('span', { class: 'table-name' }, s.table), h('code', {}, s.flow), s.for && h('span', { class: 'why' }, s.for))))));
}

function showBox(app, panel, name) {
  const m = app.matrix;
  const shown = m.data ? ends(m.searched, app.state) : null;
  const r = shown && relations(m, name, shown);
  const had = panel.contains(document.activeElement);
  replace(panel, heading(app, name), r ? boxText(app, r) : h('p', { class: 'empty' }, m.data ? 'There is no such group now.' : 'Asking who reaches whom …'));
  if (!had) panel.querySelector('h2').focus();
}

function boxText(app, r) {
  const pods = r.group.pods ?? [], most = 20;
  return [
    r.labels.length > 0 && h('p', { class: 'labels' }, r.labels.slice(0, most).map((l) => h('code', {}, l))),
    pods.length > 1 && h('details', {}, h('summary', {}, plural(pods.length, 'pod')), h('ul', { class: 'plain' }, pods.slice(0, 200).map((p) => h('li', {}, p)), pods.length > 200 && h('li', { class: 'dim' }, `and ${pods.length - 200} more`))),
    relationList(app, 'May open to it', r.into), relationList(app, 'It may open to', r.out),
  ];
}

function relationList(app, title, list) {
  const open = list.filter((r) => r.sign.kind !== 'none'), shut = list.filter((r) => r.sign.kind === 'none');
  const most = 200;
  const item = (r) => h('li', {}, h('button', { type: 'button', class: 'link', onclick: () => app.go({ from: r.pair.from, to: target(r.pair.to, app.state.port) }) }, r.name), ' ', h('span', { class: `says ${r.sign.kind}` }, r.sign.text));
  const rest = (l) => l.length > most && h('li', { class: 'dim' }, `and ${l.length - most} more`);
  return h('section', {}, h('h3', {}, title, ' ', h('span', { class: 'dim' }, open.length)),
    open.length ? h('ul', { class: 'plain' }, open.slice(0, most).map(item), rest(open)) : h('p', { class: 'dim' }, 'nobody'),
    shut.length > 0 && h('details', {}, h('summary', {}, `not: ${shut.length}`), h('ul', { class: 'plain' }, shut.slice(0, most).map(item), rest(shut))));
}
