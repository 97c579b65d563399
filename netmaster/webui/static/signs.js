// What stands for a value of the matrix. Pure.

const letters = (n) => (n < 26 ? '' : letters(Math.floor(n / 26) - 1)) + String.fromCharCode(65 + (n % 26));

// signsOf gives each value a sign and a class: nothing and everything have their own; with a port asked for, all that there is
// is that port.
export function signsOf(values, port) {
  let next = 0;
  return values.map((text) => {
    if (text === 'none') return { sign: '·', kind: 'none', text: port ? `${port} denied` : 'nothing' };
    if (text === 'all' || port) return { sign: '■', kind: 'all', text: port ? `${port} allowed` : 'everything' };
    return { sign: letters(next++), kind: 'some', text };
  });
}

// unjudged is between two that are both outside.
export const unjudged = (groups, i, j) => !groups[i].pods?.length && !groups[j].pods?.length;

// nameOf is a group's name with how many pods it stands for.
export const nameOf = (g) => ((g.pods?.length ?? 0) > 1 ? `${g.name} (${g.pods.length} pods)` : g.name);

// endsOf are two different ends that a cell speaks of, for an explanation; null where there are none.
export function endsOf(groups, i, j) {
  const of = (g) => g.pods?.[0] ?? (g.name.startsWith('world') ? 'world' : g.sample ?? null);
  const from = of(groups[i]);
  if (unjudged(groups, i, j)) return null;
  const to = i === j && groups[j].pods?.length > 1 ? groups[j].pods[1] : of(groups[j]);
  return from && to ? { from, to } : null;
}

// target is an end with a port, as netctl explain takes it.
export function target(name, port) {
  if (!port) return name;
  const [number, protocol] = port.split('/');
  return (name.includes(':') ? `[${name}]` : name) + `:${number}` + (protocol ? `/${protocol.toLowerCase()}` : '');
}

// splitTarget takes apart what target made, or a person wrote: NAME[:PORT][/PROTOCOL].
export function splitTarget(text) {
  const end = /^(.+)\/(tcp|udp|sctp|icmp)$/i.exec(text);
  const isPod = end && /^[^/:]+$/.test(end[1]) && end[1] !== 'world'; // shop/tcp is a pod
  const rest = end && !isPod ? end[1] : text, protocol = end && !isPod ? end[2].toLowerCase() : '';
  const inside = /^\[([^\]]*)\](?::(.*))?$/.exec(rest);
  if (inside) return { name: inside[1], port: inside[2] ?? '', protocol };
  const parts = rest.split(':');
  if (parts.length === 2) return { name: parts[0], port: parts[1], protocol };
  return { name: rest, port: '', protocol };
}
