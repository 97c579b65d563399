// The search page: an index of searchData by MiniSearch, built when the page opens.
'use strict';

const maxResults = 50, snippetLength = 200;
const count = document.getElementById('count'), results = document.getElementById('results');

const index = new MiniSearch({
  idField: 'place',
  fields: ['title', 'heading', 'text'],
  storeFields: ['title', 'heading', 'text'],
  searchOptions: {
    boost: { heading: 2, title: 1.5 }, weights: { prefix: 0.4, fuzzy: 0.1 },
    combineWith: 'AND', prefix: true, fuzzy: (term) => (term.length > 4 ? 0.2 : false),
  },
});
index.addAll(searchData);

// element returns an element with texts and elements in it; no text becomes markup.
function element(tag, ...children) {
  const out = document.createElement(tag);
  out.append(...children);
  return out;
}

// snippet returns the part of a text around the first match, with the matches marked.
function snippet(text, terms) {
  const words = terms.map((t) => t.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'));
  const pattern = new RegExp('(' + words.join('|') + ')', 'gi');
  const first = Math.max(0, text.search(pattern) - snippetLength / 4);
  const start = first && text.indexOf(' ', first) + 1;
  const part = text.slice(start, start + snippetLength);
  const marked = part.split(pattern).map((piece, i) => (i % 2 ? element('mark', piece) : piece));
  return element('p', start ? '… ' : '', ...marked, start + snippetLength < text.length ? ' …' : '');
}

function show() {
  const words = query.value.trim();
  const found = words ? index.search(words) : [];
  count.textContent = words ? `${found.length} sections` : 'Type a word, a flag, a metric or a part of a message.';
  results.replaceChildren(...found.slice(0, maxResults).map((f) => {
    const to = element('a', f.heading ? `${f.title}: ${f.heading}` : f.title);
    to.href = f.id;
    return element('li', to, snippet(f.text, f.terms));
  }));
}

query.value = new URLSearchParams(location.search).get('q') ?? '';
query.addEventListener('input', () => {
  history.replaceState(null, '', query.value.trim() ? '?q=' + encodeURIComponent(query.value.trim()) : location.pathname);
  show();
});
query.form.addEventListener('submit', (event) => { event.preventDefault(); show(); });
show();
query.focus();
