// The search field of each page.
'use strict';

const query = document.getElementById('query');
query.form.addEventListener('submit', (event) => {
  event.preventDefault();
  if (query.value.trim()) location.href = query.form.dataset.page + '?q=' + encodeURIComponent(query.value.trim());
});
document.addEventListener('keydown', (event) => {
  if (event.key !== '/' || event.ctrlKey || event.metaKey || /^(INPUT|TEXTAREA)$/.test(event.target.tagName)) return;
  event.preventDefault();
  query.focus();
  query.select();
});
