// Questions to netmaster, and what keeps it from answering.

const tokenKey = 'flowkeep-token';
const longest = 70_000; // ms; netmaster gives up before

// Failure is an answer that says why there is none; code 0: netmaster did not answer.
export class Failure extends Error {
  constructor(code, message, help = '') {
    super(message);
    this.code = code;
    this.help = help;
  }
}

// takeToken moves a token from the address (#token=…) to where this tab alone has it.
export function takeToken() {
  const m = /^#token=(.+)$/.exec(location.hash);
  if (!m) return;
  setToken(decodeURIComponent(m[1]));
  history.replaceState(null, '', location.pathname + '#overview');
}

export function setToken(token) {
  sessionStorage.setItem(tokenKey, token.trim());
}

function headers() {
  const token = sessionStorage.getItem(tokenKey);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

// ask gets JSON; parameters may be lists, and empty ones are left out.
export async function ask(path, parameters = {}, body = undefined, signal = undefined) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters)) for (const v of [value].flat()) if (v) query.append(key, v);
  const response = await open(`api/${path}${query.size ? '?' + query : ''}`, body, signal ?? AbortSignal.timeout(longest));
  return response.json();
}

// open gives the response, which is one of success.
export async function open(url, body, signal) {
  let response;
  try {
    response = await fetch(url, {
      method: body === undefined ? 'GET' : 'POST', cache: 'no-store', signal,
      headers: body === undefined ? headers() : { ...headers(), 'Content-Type': 'application/json' },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Failure(0, error.name === 'TimeoutError' ? 'netmaster takes too long to answer' : 'netmaster does not answer');
  }
  if (response.ok) return response;
  const told = await response.json().catch(() => ({}));
  throw new Failure(response.status, told.error ?? `netmaster answers ${response.status}`, told.help);
}
