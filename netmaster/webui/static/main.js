// The page: its state is its address; what it knows of netmaster it asks for again and again.

import { ask, setToken, takeToken } from './api.js';
import { byID, h, helpLink, replace } from './dom.js';
import { index } from './filter.js';
import { format, parse, portOf, views } from './state.js';
import { signsOf } from './signs.js';
import * as drops from './drops.js';
import * as graph from './graph.js';
import * as matrix from './matrix.js';
import * as overview from './overview.js';
import * as policies from './policies.js';
import * as panel from './panel.js';
import { startTheme } from './theme.js';

const modules = { overview, graph, matrix, policies, drops };
const titles = { overview: 'Overview', graph: 'Graph', matrix: 'Matrix', policies: 'Policies', drops: 'Drops' };
const pause = 3000; // ms between two looks at netmaster
const longestPause = 15000;

// app is what the parts share. state is never changed but by go.
const app = {
  state: parse(location.hash), overview: null, version: '', away: null, token: false,
  matrix: { key: null, data: null, error: null, loading: false, searched: [], signs: [], took: 0, at: 0 },
  go, loadMatrix, render, announce: (text) => { byID('shown').textContent = text; },
};

let shownView = null, view = null, failures = 0, timer = 0;

// go changes the state; with replace the step back does not come here again.
function go(changes, { replace: instead = false } = {}) {
  const hash = format({ ...app.state, ...changes });
  if (hash === format(app.state) && location.hash === hash) return;
  if (instead) {
    history.replaceState(null, '', hash);
    arrive();
  } else {
    location.hash = hash;
  }
}

function arrive() {
  app.state = parse(location.hash);
  render();
}

function render() {
  renderNav();
  renderFilter();
  const main = byID('main');
  if (app.token) {
    if (!byID('token')) replace(main, login());
    byID('token-said').textContent = app.away?.message ?? '';
    shownView = null;
    return;
  }
  if (shownView !== app.state.view) {
    view?.leave?.();
    view = modules[app.state.view].create(app);
    shownView = app.state.view;
    replace(main, view.element);
    document.title = `${titles[shownView]} – Flowkeep`;
  }
  view.update();
  main.setAttribute('aria-busy', String(Boolean(view.busy?.())));
  panel.update(app);
}

function renderNav() {
  const nav = byID('views');
  if (!nav.children.length) replace(nav, views.map((v) => h('a', {}, titles[v])));
  views.forEach((v, i) => {
    nav.children[i].href = format({ ...app.state, view: v, policy: '', node: '', from: '', to: '', at: '' });
    if (v === app.state.view) nav.children[i].setAttribute('aria-current', 'page');
    else nav.children[i].removeAttribute('aria-current');
  });
}

const inputs = { ns: 'filter-ns', q: 'filter-q', port: 'filter-port' };

function renderFilter() {
  byID('filter').hidden = app.state.view === 'overview' || app.token;
  for (const [key, id] of Object.entries(inputs)) {
    const input = byID(id);
    if (document.activeElement !== input) input.value = app.state[key];
  }
  byID('filter-outside').checked = app.state.outside !== '';
  const relations = app.state.view === 'graph' || app.state.view === 'matrix';
  byID('filter-port').closest('label').hidden = !relations;
  byID('filter-outside').closest('label').hidden = !relations;
}

function readFilter() {
  const port = byID('filter-port');
  const good = portOf(port.value);
  port.setCustomValidity(good === null ? 'a number, and a protocol if it is not TCP: 53/udp' : '');
  port.setAttribute('aria-invalid', String(good === null));
  if (good === null) app.announce('a port is a number, and a protocol if it is not TCP: 53/udp');
  go({ ns: byID('filter-ns').value.trim(), q: byID('filter-q').value, port: good ?? app.state.port, outside: byID('filter-outside').checked ? '1' : '' }, { replace: true });
}

function login() {
  const input = h('input', { id: 'token', type: 'password', size: 40, autocomplete: 'off', 'aria-describedby': 'token-help' });
  return h('form', { class: 'login', onsubmit: (e) => { e.preventDefault(); setToken(input.value); app.token = false; look(); } },
    h('h2', {}, 'Token'),
    h('p', { id: 'token-help' }, 'This netmaster shows the page to those who have its token. It is in the file that netmaster names in its log.', helpLink('docs/web-ui.html#access')),
    h('label', {}, 'Token ', input), ' ', h('button', {}, 'Look'), h('p', { id: 'token-said', class: 'denied', role: 'status' }));
}

// look asks how everything is, and again after a while, a longer one while there is no answer.
async function look() {
  clearTimeout(timer);
  try {
    const answer = await ask('overview');
    failures = 0;
    app.token = false;
    app.away = null;
    app.overview = answer;
    app.version ||= answer.status.version;
  } catch (error) {
    failures++;
    app.token = error.code === 401;
    app.away = { message: error.message, since: app.away?.since ?? Date.now() };
  }
  renderHealth();
  render();
  if (!document.hidden) timer = setTimeout(look, failures ? Math.min(longestPause, 500 * 2 ** failures) : pause);
}

function renderHealth() {
  const health = byID('health'), away = byID('away');
  const problems = app.overview?.status.problems ?? [];
  const text = app.token ? 'a token is needed' : app.away ? 'netmaster does not answer' : app.overview?.line ?? '';
  if (health.textContent !== text) replace(health, text);
  health.className = app.token ? 'warn' : app.away ? 'bad' : problems.length ? 'warn' : 'good';
  away.hidden = !app.away || app.token;
  const seen = app.overview ? `What is shown is of revision ${app.overview.status.revision}, and may be out of date.` : 'Nothing can be shown.';
  const words = app.away ? `${app.away.message}, since ${new Date(app.away.since).toLocaleTimeString()}. ${seen} Asking again …` : '';
  if (away.textContent !== words) replace(away, words);
  if (!app.away && app.version && app.overview.status.version !== app.version) {
    away.hidden = false;
    replace(away, `netmaster is ${app.overview.status.version} now, and this page of ${app.version}. `, h('button', { type: 'button', onclick: () => location.reload() }, 'Load it anew'));
  }
}

// loadMatrix has the matrix that the state asks for, kept until netmaster has another; views call it in update.
function loadMatrix() {
  const m = app.matrix;
  const key = JSON.stringify([app.state.port, app.state.outside, m.tooMany ? app.state.ns : '']);
  const revision = app.overview?.status.revision, version = overview.versionOf(app.overview);
  const stale = m.data && (m.data.revision !== revision || m.version !== version) && Date.now() - m.at > 5 * m.took;
  if (!app.overview || m.loading || (m.key === key && !stale && (m.data || m.error) && !(m.error && (m.failedAt !== revision || Date.now() - m.at > 2 * pause)))) return m;
  m.loading = true;
  const began = Date.now();
  fetchMatrix(m).then((data) => Object.assign(m, { data, error: null, searched: index(data), signs: signsOf(data.values, data.port) }), (error) => Object.assign(m, { error, data: m.key === key ? m.data : null, failedAt: revision }))
    .finally(() => { Object.assign(m, { loading: false, key, version, took: Date.now() - began, at: Date.now() }); namesOf(m.data); render(); });
  return m;
}

// fetchMatrix asks for all of it, and for one namespace at a time from when there were too many groups.
async function fetchMatrix(m) {
  const { port, outside, ns } = app.state;
  if (m.tooMany && !ns) throw m.tooMany;
  try {
    return { port, ...await ask('matrix', { port, outside, ns: m.tooMany ? ns : '' }) };
  } catch (error) {
    if (error.code !== 429 || m.tooMany) throw error;
    m.tooMany = error;
    return fetchMatrix(m);
  }
}

function namesOf(data) {
  if (!data) return;
  const names = [...new Set(data.groups.map((g) => g.namespace).filter(Boolean))];
  replace(byID('namespaces'), names.slice(0, 1000).map((value) => h('option', { value })));
  const ports = new Set(data.values.flatMap((v) => [...v.matchAll(/(TCP|UDP|SCTP) ([\d,]+)/g)].flatMap(([, p, list]) => list.split(',').map((n) => `${n}/${p}`))));
  if (!data.port) replace(byID('ports'), [...ports].slice(0, 200).map((value) => h('option', { value })));
}

function keys(event) {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
  if (event.key === '/' && !typing && !event.ctrlKey && !event.metaKey && !byID('filter').hidden) {
    event.preventDefault();
    byID('filter-q').focus();
    byID('filter-q').select();
  } else if (event.key === 'Escape' && !event.defaultPrevented) {
    if (typing && event.target.closest('#filter')) {
      event.preventDefault(); // which would empty it
      (byID('main').querySelector('[tabindex="0"]') ?? byID('main')).focus();
    } else if (!byID('panel').hidden) panel.close(app);
    else if (app.state.policy) go({ policy: '' });
  }
}

takeToken();
app.state = parse(location.hash);
startTheme(byID('theme'));
byID('filter').addEventListener('input', readFilter);
byID('filter').addEventListener('submit', (e) => e.preventDefault());
byID('filter').addEventListener('reset', (e) => { e.preventDefault(); for (const id of Object.values(inputs)) byID(id).value = ''; byID('filter-outside').checked = false; readFilter(); });
addEventListener('hashchange', arrive);
addEventListener('keydown', keys);
addEventListener('resize', () => view?.resized?.());
document.addEventListener('visibilitychange', () => { if (!document.hidden) look(); });
render();
look();
