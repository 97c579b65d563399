// Whether all is well, and what each node has in force.

import { age, h, helpLink, plural, replace } from './dom.js';

const mostNodes = 300, mostProblems = 50; // that are listed

export function create(app) {
  const element = h('section', { class: 'overview', 'aria-label': 'Overview' });
  let last = '', at = 0;
  return {
    element,
    busy: () => !app.overview && !app.away,
    update() {
      const st = app.overview?.status;
      const now = JSON.stringify([st, Boolean(app.away)]);
      if (now === last && Date.now() - at < 20000) return; // ages go on
      [last, at] = [now, Date.now()];
      replace(element, st ? show(app.overview) : app.away ? nothing() : h('p', { class: 'dim' }, 'Asking netmaster …'));
    },
  };
}

const nothing = () => h('p', { class: 'empty' }, 'netmaster does not answer. Nodes go on enforcing what they have; this page asks again until it does.');

function show({ status: st, help }) {
  return [
    problems(st.problems, help),
    h('dl', { class: 'figures' }, [['Policies', st.policies], ['Pods', st.endpoints], ['Namespaces', st.namespaces], ['Rules', st.rules], ['Groups', st.groups], ['Revision', st.revision]]
      .map(([name, n]) => h('div', {}, h('dt', {}, name), h('dd', {}, n.toLocaleString('en'))))),
    h('p', { class: 'dim' }, `netmaster ${st.version}, up ${age(st.started)}`),
    nodes(st.nodes),
  ];
}

function problems(list, help = []) {
  if (!list?.length) return null;
  return h('section', { class: 'problems', 'aria-label': 'Problems' }, h('h2', {}, plural(list.length, 'problem')), h('ul', {}, list.slice(0, mostProblems).map((p, i) => h('li', {}, p, helpLink(help[i]))), list.length > mostProblems && h('li', {}, `and ${list.length - mostProblems} more: netctl status lists all`)));
}

// versionOf changes with all that policies, matrices and explanations depend on; undefined: nothing is known yet.
export const versionOf = (overview) => (overview ? `${overview.status.revision} ${overview.status.unattached ?? 0}` : undefined);

// stateOf is how far a node is, in a word, and why.
export function stateOf(n) {
  if (n.refused) return ['bad', 'refused', n.refused];
  if (!n.connected) return ['bad', 'away', 'it enforces what it last had'];
  if (n.errors?.length) return ['bad', 'failed', n.errors.join('; ')];
  if (n.own && !n.own.switchConnected) return ['bad', 'no switch', 'it has no connection to its Open vSwitch'];
  if (n.own?.switchProblem) return ['bad', 'nothing passes', n.own.switchProblem];
  if (n.realised < n.sent || n.pending > 0) return ['warn', 'pending', `it has acknowledged revision ${n.realised} of ${n.sent}` + (n.pending ? `; ${n.pending} changes wait to be sent` : '')];
  return ['good', 'in force', ''];
}

// badge is a state with a sign of its own, for who does not see the colours.
export const badge = (kind, text) => h('span', { class: `badge ${kind}` }, h('span', { 'aria-hidden': 'true' }, { good: '✓ ', warn: '… ', bad: '✗ ' }[kind] ?? ''), text);

function nodes(list) {
  if (!list.length) return h('p', { class: 'empty' }, 'No node has connected yet: netplugin on each node does, once it runs.');
  const number = (n) => h('td', { class: 'number' }, n === undefined ? '–' : n.toLocaleString('en'));
  return h('div', { class: 'scroll' }, h('table', { class: 'list' },
    h('caption', {}, plural(list.length, 'node')),
    h('thead', {}, h('tr', {}, ['Node', 'Policies', 'Revision', 'Rules', 'Groups', 'Pods', 'Flows', 'Switch', 'Connected', 'Version'].map((t) => h('th', { scope: 'col' }, t)))),
    h('tbody', {}, worst(list).slice(0, mostNodes).map((n) => {
      const [kind, word, why] = stateOf(n);
      return h('tr', {},
        h('th', { scope: 'row' }, n.name), h('td', {}, badge(kind, word), why && h('span', { class: 'why' }, why)),
        h('td', { class: 'number' }, n.realised < n.sent ? `${n.realised} of ${n.sent}` : n.realised),
        number(n.rules), number(n.groups), number(n.own?.endpoints), number(n.own?.flows),
        h('td', {}, n.own ? (n.own.switchConnected ? n.own.datapath || 'connected' : 'away') : '–'),
        h('td', {}, n.connected ? age(n.since) : '–'), h('td', { class: 'dim' }, n.version || '–'));
    }))), list.length > mostNodes && h('p', { class: 'dim' }, `and ${list.length - mostNodes} more, which are no worse`));
}

const order = ['bad', 'warn', 'good'];

// worst has first what is not well, where not all can be shown.
function worst(list) {
  return list.length <= mostNodes ? list : list.toSorted((a, b) => order.indexOf(stateOf(a)[0]) - order.indexOf(stateOf(b)[0]));
}
