// The server's answers. A token is kept for the session only, and never in the address.

let token = sessionStorage.getItem("crossbatch-token") || "";

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function setToken(value) {
  token = value;
  sessionStorage.setItem("crossbatch-token", value);
}

async function call(path, options = {}) {
  const headers = { ...(options.headers || {}), ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The server does not answer.");
  }
  const body = await response.json().catch(() => null);
  if (!response.ok) throw new Refused(response.status, body?.error?.message || `status ${response.status}`);
  return body;
}

const query = (values) => new URLSearchParams(values).toString();

export const health = () => call("/health");
export const findItems = (search, limit, signal) => call(`/items?${query({ search, limit })}`, { signal });
export const similar = (id, k, bundle) => call(`/similar?${query({ id, k, bundle })}`);

export async function itemsById(ids, bundle) {
  const found = [];
  for (let start = 0; start < ids.length; start += 100) {
    const some = ids.slice(start, start + 100).map((id) => ["id", id]);
    found.push(...(await call(`/items?${query([...some, ["bundle", bundle]])}`)).items);
  }
  return found;
}

export const recommend = (body, signal) =>
  call("/recommend", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
