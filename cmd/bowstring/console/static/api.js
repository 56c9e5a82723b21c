// Requests to the server. Failures are thrown as Problem.

export class Problem extends Error {
  constructor(status, body) {
    super(body.error || "the server answers with status " + status);
    this.status = status;
    this.body = body;
  }
}

let onSignedOut = () => {};
export const signedOut = (f) => { onSignedOut = f; };

async function call(path, options = {}) {
  let answer;
  try {
    answer = await fetch("api/" + path, { credentials: "same-origin", ...options });
  } catch (e) {
    if (e.name === "AbortError") throw e;
    throw new Problem(0, { error: "the server cannot be reached" });
  }
  const body = answer.status === 204 ? {} : await answer.json().catch(() => ({}));
  if (answer.ok) return body;
  if (answer.status === 401 && !options.quiet) onSignedOut(body);
  throw new Problem(answer.status, body);
}

const query = (o) => {
  const q = new URLSearchParams();
  for (const [k, v] of Object.entries(o)) {
    for (const one of Array.isArray(v) ? v : [v]) if (one !== undefined && one !== null && one !== "") q.append(k, one);
  }
  return q.toString();
};

export const get = (path, parameters = {}, signal) => call(path + "?" + query(parameters), { signal });
export const session = () => call("session", { quiet: true });
export const signIn = (token) => call("session", {
  method: "POST", quiet: true, headers: { "Content-Type": "application/json" }, body: JSON.stringify({ token }),
});
export const signOut = () => call("session", { method: "DELETE", quiet: true });
export const blobURL = (parameters) => "api/blob?" + query(parameters);
