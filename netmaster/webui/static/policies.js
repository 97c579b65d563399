// The policies, what is in force of them where, and what an edited one would change. Nothing is written: kubectl applies.

import { ask } from './api.js';
import { h, helpLink, plural, replace } from './dom.js';
import { read } from './filter.js';
import { badge, versionOf } from './overview.js';
import { whatIf } from './whatif.js';

const kinds = { realised: 'good', pending: 'warn', failed: 'bad', away: 'bad', partial: 'bad' };
const most = 500; // in the list

const template = (namespace) => `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: new
  namespace: ${namespace || 'default'}
spec:
  podSelector: {}
  policyTypes: [Ingress]
  ingress:
  - from:
    - podSelector: {}
`;

export function create(app) {
  const note = h('p', { class: 'dim' });
  const body = h('tbody', { onkeydown: keydown });
  const table = h('div', { class: 'scroll' }, h('table', { class: 'list' }, h('thead', {}, h('tr', {}, ['Policy', 'In force', 'Isolates', 'Pods', 'Generation'].map((t) => h('th', { scope: 'col', class: t === 'Generation' ? 'less' : '' }, t)))), body));
  const detail = h('div', { class: 'policy', 'aria-live': 'off' });
  const element = h('section', { class: 'policies', 'aria-label': 'Policies' },
    h('div', { class: 'policy-list' }, h('div', { class: 'bar' }, note, h('button', { type: 'button', onclick: () => app.go({ policy: '+' }) }, 'New policy')), table), detail);
  let list = null, error = null, tooMany = null, loading = false, notBefore = 0, loadedFor = '', shownFor = '', listedFor = [], one = null;

  function update() {
    const revision = versionOf(app.overview);
    const key = `${revision} ${tooMany ? app.state.ns : ''} ${changing(list) ? Date.now() : ''}`;
    if (revision !== undefined && !loading && key !== loadedFor && !app.away && Date.now() >= notBefore) load(key);
    showList();
    showOne(revision);
  }

  async function load(key) {
    loading = true;
    try {
      if (tooMany && !app.state.ns) throw tooMany;
      const answer = await ask('policies', { ns: tooMany ? app.state.ns : '' });
      if (JSON.stringify(answer) !== JSON.stringify(list)) list = answer;
      [error, notBefore] = [null, changing(list) ? Date.now() + 2000 : 0];
    } catch (failed) {
      [error, key, notBefore] = [failed, '', Date.now() + 2000]; // to be asked again
      if (failed.code === 429) [notBefore, tooMany, list] = [tooMany ? notBefore : 0, failed, null];
    }
    [loading, loadedFor] = [false, key];
    app.render();
  }

  function showList() {
    const now = [list, error, app.state.ns, app.state.q, app.state.policy];
    if (now.every((v, i) => v === listedFor[i])) return;
    listedFor = now;
    element.classList.toggle('chosen', Boolean(app.state.policy));
    if (!list) {
      table.hidden = true;
      replace(note, error ? ['There is no list: ', error.message, '.', helpLink(error.help)] : 'Asking for the policies …');
      return;
    }
    const terms = read(app.state.q);
    const fits = list.filter((p) => (!app.state.ns || p.namespace === app.state.ns) && terms.every((t) => textOf(p).includes(t.word) !== t.out));
    table.hidden = !fits.length;
    replace(note, !list.length ? 'There is no policy: every pod reaches every other.' : !fits.length ? 'Nothing matches the filter.' : fits.length > most ? `The first ${most} of ${fits.length}: filter to see the others.` : plural(fits.length, 'policy', 'policies'));
    app.announce(`${fits.length} of ${plural(list.length, 'policy', 'policies')}`);
    const focused = document.activeElement?.closest?.('tr')?.dataset.id;
    replace(body, fits.slice(0, most).map(line));
    if (focused && body.isConnected) [...body.rows].find((r) => r.dataset.id === focused)?.querySelector('a').focus();
  }

  function line(p) {
    const id = `${p.namespace}/${p.name}`;
    return h('tr', { 'data-id': id, 'aria-selected': id === app.state.policy ? 'true' : undefined },
      h('th', { scope: 'row' }, h('a', { href: `#policies?${new URLSearchParams({ ...kept(app.state), policy: id })}` }, id), isDryRun(p) && h('span', { class: 'why' }, 'dry run'), p.problems?.length > 0 && h('span', { class: 'why' }, plural(p.problems.length, 'part'), ' refused')),
      h('td', {}, standing(p)), h('td', {}, p.directions.join(', ') || 'nothing'), h('td', { class: 'number' }, p.pods.toLocaleString('en')), h('td', { class: 'number less' }, p.generation || '–'));
  }

  function keydown(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const row = event.target.closest('tr');
    if (!step || !row) return;
    event.preventDefault();
    (step > 0 ? row.nextElementSibling : row.previousElementSibling)?.querySelector('a').focus();
  }

  async function showOne(revision) {
    const id = app.state.policy;
    if (!id) {
      [shownFor, one] = ['', null];
      detail.hidden = true;
      return;
    }
    detail.hidden = false;
    const fresh = !one || one.id !== id;
    const key = `${id} ${revision} ${changing(one?.policy && [one.policy]) ? Date.now() : ''}`;
    if (key === shownFor || (app.away && !fresh)) return;
    shownFor = key;
    if (fresh) {
      one = opened(app, id);
      replace(detail, one.element);
    }
    if (id !== '+' && !await one.load()) shownFor = '';
  }

  return { element, update, busy: () => !list && loading, leave: () => {} };
}

const kept = ({ ns, q }) => Object.fromEntries(Object.entries({ ns, q }).filter(([, v]) => v));
const textOf = (p) => [`${p.namespace}/${p.name}`, p.selector].join(' ').toLowerCase();
// changing excludes partial, which may last for days: versionOf changes when it ends.
const changing = (list) => list?.some((p) => p.nodes.some((n) => n.state === 'pending'));

const isDryRun = (p) => p.mode === 'dry-run';

// standing sums up the nodes: the worst first.
function standing(p) {
  const count = (state) => p.nodes.filter((n) => n.state === state).length;
  for (const state of ['partial', 'failed', 'away', 'pending']) if (count(state)) return badge(kinds[state], `${state} on ${count(state)} of ${plural(p.nodes.length, 'node')}`);
  return p.nodes.length ? badge('good', `${isDryRun(p) ? 'dry run on' : 'on'} ${plural(p.nodes.length, 'node')}`) : h('span', { class: 'dim' }, 'no node needs it');
}

// opened is one policy, or (+) a new one.
function opened(app, id) {
  const state = h('div', {}), rules = h('div', {}), editor = whatIf(id === '+' ? template(app.state.ns) : '', id);
  const isNew = id === '+';
  const element = h('div', {},
    h('div', { class: 'panel-head' }, h('h2', { tabindex: -1 }, isNew ? 'New policy' : id), h('button', { type: 'button', class: 'quiet', 'aria-label': 'Close', onclick: () => app.go({ policy: '' }) }, '✕')),
    state, rules, editor.element);
  const self = { id, element, policy: null, load };
  let told = '';
  async function load() {
    try {
      const p = await ask('policy', { id });
      const now = JSON.stringify(p);
      if (now === told) return true;
      told = now;
      self.policy = p;
      replace(state, stateTable(p));
      replace(rules, ruleList(p));
      editor.offer(p.yaml, p.yamlProblem);
      return true;
    } catch (failed) {
      told = '';
      self.policy = null;
      replace(state, h('p', { class: 'empty' }, failed.code === 404 ? 'There is no such policy now.' : ['It cannot be shown: ', failed.message, '.', helpLink(failed.help)]));
      replace(rules);
      return false;
    }
  }
  return self;
}

function stateTable(p) {
  return [
    p.problems?.length > 0 && h('ul', { class: 'problems' }, p.problems.map((t) => h('li', {}, t))),
    h('p', {}, isDryRun(p) && ['A dry run: it denies nothing, and ', h('code', {}, `netctl dry-run ${p.namespace}/${p.name}`), ' shows what it would have denied. '], `${isDryRun(p) ? 'Once enforced, it isolates' : 'Isolates'} ${plural(p.pods, 'pod')} (${p.selector || 'all'}) for ${p.directions.join(' and ') || 'nothing'}; generation ${p.generation || '–'}.`),
    p.nodes.length > 0 && h('table', { class: 'list' }, h('thead', {}, h('tr', {}, ['Node', 'State', 'Why'].map((t) => h('th', { scope: 'col' }, t)))),
      h('tbody', {}, worst(p.nodes).map((n) => h('tr', {}, h('th', { scope: 'row' }, n.name), h('td', {}, badge(kinds[n.state] ?? 'warn', n.leaving ? `${n.state}, leaving` : n.state)), h('td', { class: 'why' }, [...(n.errors ?? []), n.reason].filter(Boolean).join('; ')))))),
  ];
}

const mostNodes = 200, mostPeers = 20;

function worst(nodes) {
  const order = ['partial', 'failed', 'away', 'pending', 'realised'];
  return nodes.length <= mostNodes ? nodes : nodes.toSorted((a, b) => order.indexOf(a.state) - order.indexOf(b.state)).slice(0, mostNodes);
}

function ruleList(p) {
  if (!p.rules?.length) return null;
  const peers = (r) => (r.peers?.length ? r.peers.slice(0, mostPeers).map((q) => q.text + (q.endpoints ? ` (${plural(q.endpoints.length, 'pod')})` : '')).join('; ') + (r.peers.length > mostPeers ? ` and ${r.peers.length - mostPeers} more` : '') : 'nobody');
  const shown = p.rules.slice(0, 200);
  return h('details', { open: p.rules.length <= 8 }, h('summary', {}, plural(p.rules.length, 'rule')), h('table', { class: 'list' },
    h('thead', {}, h('tr', {}, ['Rule', 'Peers', 'Ports'].map((t) => h('th', { scope: 'col' }, t)))),
    h('tbody', {}, shown.map((r) => h('tr', {}, h('th', { scope: 'row' }, r.index < 0 ? `${r.direction}: isolates` : `${r.direction}[${r.index}]`), h('td', {}, peers(r)), h('td', {}, r.ports || '–'))))));
}
