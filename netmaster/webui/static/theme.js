// Light, dark, or as the system says; kept for the next time where the browser lets it be.

const choices = ['auto', 'light', 'dark'];
const names = { auto: '◐ auto', light: '○ light', dark: '● dark' };
const key = 'flowkeep-theme';

export function startTheme(button) {
  let now = kept();
  const show = () => {
    if (now === 'auto') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = now;
    button.textContent = names[now];
    button.setAttribute('aria-label', `Colours: ${now}`);
  };
  button.addEventListener('click', () => {
    now = choices[(choices.indexOf(now) + 1) % choices.length];
    try { localStorage.setItem(key, now); } catch { /* it lasts as long as the page */ }
    show();
  });
  show();
}

function kept() {
  try {
    const value = localStorage.getItem(key);
    return choices.includes(value) ? value : 'auto';
  } catch {
    return 'auto';
  }
}
