// The editor, and what applying or removing what stands in it would change.

import { ask } from './api.js';
import { h, helpLink, plural, replace } from './dom.js';

// whatIf makes an editor; offer gives it the policy as it is, which does not overwrite what somebody has typed.
export function whatIf(text, id) {
  const area = h('textarea', { spellcheck: false, rows: 16, autocomplete: 'off', 'aria-label': 'Policy in YAML', oninput: () => { touched = area.value !== original; show(); }, onkeydown: keydown });
  const note = h('p', { class: 'dim' }), result = h('div', { class: 'whatif', role: 'region', 'aria-label': 'What would change', 'aria-live': 'polite' });
  const apply = h('button', { type: 'button', class: 'main', title: 'Ctrl+Enter', onclick: () => run(false) }, 'What if it were applied?');
  const remove = h('button', { type: 'button', onclick: () => run(true) }, 'What if it were removed?');
  const back = h('button', { type: 'button', class: 'quiet', onclick: () => { area.value = original; touched = false; show(); } }, 'As it is');
  const copy = h('button', { type: 'button', class: 'quiet', onclick: copyText }, 'Copy');
  const element = h('section', { class: 'editor', 'aria-label': 'Editor' }, h('h3', {}, 'YAML'), note, area, h('div', { class: 'bar' }, apply, id !== '+' && remove, back, copy), result);
  let original = text, touched = false, request = 0;
  area.value = text;
  show();

  function show() {
    back.disabled = !touched;
    replace(note, touched ? 'Edited here; nothing is written. To apply it: copy it, and kubectl apply -f -.' : 'Edit it and ask what would change. Nothing is written.');
    area.rows = Math.max(10, Math.min(40, area.value.split('\n').length + 1));
  }

  // keydown: Ctrl+Enter asks; Escape leaves the editor, as Tab does.
  function keydown(event) {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) run(false);
    else if (event.key === 'Escape') { event.preventDefault(); apply.focus(); }
    else return;
    event.preventDefault();
  }

  async function copyText() {
    try {
      await navigator.clipboard.writeText(area.value);
      copy.textContent = 'Copied';
    } catch {
      area.select();
      copy.textContent = 'Selected: Ctrl+C';
    }
    setTimeout(() => { copy.textContent = 'Copy'; }, 2000);
  }

  async function run(removed) {
    const mine = ++request;
    result.setAttribute('aria-busy', 'true');
    replace(result, h('p', { class: 'dim' }, 'Asking what would change …'));
    let content;
    try {
      content = changes(await ask('whatif', {}, { manifest: area.value, delete: removed }), removed);
    } catch (error) {
      content = h('p', { class: 'denied' }, error.message, helpLink(error.help));
    }
    if (mine !== request) return;
    result.removeAttribute('aria-busy');
    replace(result, content);
  }

  return {
    element,
    offer(yaml, problem) {
      if (yaml) original = yaml;
      if (!touched && yaml && area.value !== yaml) area.value = yaml;
      show();
      if (problem && !yaml && !touched) replace(note, `The API server does not give its YAML: ${problem}.`);
    },
  };
}

const few = (names) => (names.length > 4 ? `${names.slice(0, 3).join(', ')} and ${names.length - 3} more` : names.join(', '));

function changes(d, removed) {
  const most = 300;
  return [
    h('h3', {}, removed ? 'If it were removed' : 'If it were applied'),
    h('p', { class: 'headline' }, headline(d)),
    h('ul', { class: 'plain' }, d.policies.map((p) => h('li', {}, `${p.policy}: ${p.action}`, (p.notes ?? []).map((n) => h('span', { class: 'why' }, n))))),
    d.rows.length > 0 && h('div', { class: 'scroll' }, h('table', { class: 'list' },
      h('thead', {}, h('tr', {}, ['Verdict', 'From', 'To', 'What', 'Live', 'Because'].map((t) => h('th', { scope: 'col' }, t)))),
      h('tbody', {}, d.rows.slice(0, most).map((r) => h('tr', {},
        h('td', {}, h('span', { class: `badge ${r.denied ? 'bad' : 'good'}` }, r.denied ? '− denied' : '+ allowed')),
        h('td', { title: r.from.slice(0, 50).join('\n') }, few(r.from)), h('td', { title: r.to.slice(0, 50).join('\n') }, few(r.to)),
        h('td', {}, r.what + (r.family ? ` (IPv${r.family})` : '')), h('td', { class: 'number' }, r.denied ? r.cut : ''), h('td', { class: 'why' }, few(r.because))))))),
    d.rows.length > most && h('p', { class: 'dim' }, `and ${d.rows.length - most} more: netctl diff lists all`),
    d.examples.length > 0 && h('details', {}, h('summary', {}, `${plural(d.cut, 'live connection')} would be cut, such as`), h('ul', { class: 'plain' }, d.examples.slice(0, 20).map((e) => h('li', {}, h('code', {}, e))))),
    h('ul', { class: 'plain' }, Object.entries(d.unknown ?? {}).map(([n, why]) => h('li', { class: 'dim' }, `connections of node ${n} are not all known: ${why}`)), d.notes.map((n) => h('li', { class: 'dim' }, n))),
  ];
}

function headline(d) {
  if (d.same) return 'Nothing would change.';
  const denied = d.rows.filter((r) => r.denied).length, allowed = d.rows.length - denied;
  return [`${plural(denied, 'way')} would be denied, ${allowed} allowed`, d.cut > 0 && `; ${plural(d.cut, 'live connection')} would be cut`, '.'];
}
