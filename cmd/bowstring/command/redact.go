package command

import (
	"encoding/json"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// removed replaces a secret in an archive for a bug report.
const removed = "REMOVED"

// leastSecret is the length in bytes from which a known secret is searched for in texts. A
// shorter one would occur in words that are no secrets.
const leastSecret = 6

// redactor removes secrets from what an archive for a bug report holds. Three rules apply,
// because each one alone has gaps: secrets that this process knows are removed wherever
// they occur; addresses keep only the parts that cannot hold a secret; and words that
// look like credentials are removed. It is not safe for concurrent use.
type redactor struct {
	known []string // secrets that this process knows, the longest first
}

// add makes a secret known. A text of several lines is also known by each line.
func (r *redactor) add(secret string) {
	for _, s := range append(strings.Split(secret, "\n"), secret) {
		if s = strings.TrimSpace(s); len(s) >= leastSecret && !slices.Contains(r.known, s) {
			r.known = append(r.known, s)
		}
	}
	// A secret may contain another one, and is then removed as a whole.
	slices.SortStableFunc(r.known, func(a, b string) int { return len(b) - len(a) })
}

// leastWord is the length in bytes from which a word of a file of secrets is one.
const leastWord = 12

// addFile makes known what a file of secrets holds: its lines and its long words. A file in
// YAML or JSON has names beside the secrets, and its addresses are no secrets.
func (r *redactor) addFile(text string) {
	r.add(text)
	for _, word := range strings.FieldsFunc(text, func(c rune) bool { return strings.ContainsRune(" \t\r\n\"',={}[]", c) }) {
		if len(word) >= leastWord && !strings.Contains(word, "://") {
			r.add(word)
		}
	}
}

// addURL makes known the secrets of an address: its password, and the values of parameters
// that may be secret.
func (r *redactor) addURL(address string) {
	_, rest, ok := strings.Cut(address, "://")
	if !ok {
		return
	}
	both := func(s string) {
		r.add(s)
		if plain, err := url.QueryUnescape(s); err == nil {
			r.add(plain)
		}
		if plain, err := url.PathUnescape(s); err == nil {
			r.add(plain)
		}
	}
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		if _, password, ok := strings.Cut(rest[:at], ":"); ok {
			both(password)
		}
	}
	_, query, _ := strings.Cut(rest, "?")
	for _, pair := range parameters(query) {
		if name, value, _ := strings.Cut(pair, "="); !plainParameters[name] {
			both(value)
		}
	}
}

// plainParameters are the parameters of addresses of stores whose values are no secrets.
// They are listed, and not those that are secret: an unknown parameter is removed.
var plainParameters = map[string]bool{
	"ca": true, "cert": true, "connect": true, "consistency": true, "dc": true, "endpoint": true, "key": true,
	"keys": true, "password_file": true, "path_style": true, "proto": true, "rack": true, "region": true, "rf": true,
	"server_name": true, "timeout": true, "tls": true, "verify": true,
}

// credentialWords are parts of names of credentials, as a regular expression.
const credentialWords = `secret|token|passw|passphrase|pwd|api.?key|account.?key|access.?key|private.?key|credential|` +
	`signature|cookie`

var (
	// addressForm finds addresses in a text.
	addressForm = regexp.MustCompile(`[A-Za-z][A-Za-z0-9+.-]*://[^\s"'<>` + "`" + `]*`)
	// hostsForm is what may be between the scheme and the path: hosts with ports, or the
	// name of a bucket.
	hostsForm = regexp.MustCompile(`^([\w.*-]*|\[[0-9A-Fa-f:.%]+\])(:\d+)?(,([\w.-]+|\[[0-9A-Fa-f:.%]+\])(:\d+)?)*$`)
	// namedForm is an address of a store or server with a snapshot or tag in its path. Its
	// scheme is none whose addresses have users without a password.
	namedForm = regexp.MustCompile(`^(s3|gs|az|file|grpc|grpc\+tls)://[\w.-]*/[^:?#@]*@[^:?#@]*$`)
	// plainValue is the value of a parameter that is shown. It cannot hold another
	// parameter in an escaped form.
	plainValue = regexp.MustCompile(`^[\w.,:/-]*$`)
	// credentialForms find credentials by how they are written. The first group is kept.
	credentialForms = []*regexp.Regexp{
		regexp.MustCompile(`(?i)(\bauthorization\b["']?\s*[=:]\s*["']?)[^"'\r\n]+`),
		regexp.MustCompile(`(?i)(\b(?:bearer|basic)\s+)[\w.~+/=-]{6,}`),
		regexp.MustCompile(`(?i)([\w.-]*(?:` + credentialWords + `)[\w.-]*\\?["']?\s*[=:]\s*)` +
			`(?:\\"(?:[^"\\]|\\[^"])*\\"|"(?:[^"\\]|\\.)*"|'[^']*'|[^\s"'&;]+)`),
		regexp.MustCompile(`()-----BEGIN [A-Z0-9 ]+-----[\s\S]*?(?:-----END [A-Z0-9 ]+-----|$)`),
		regexp.MustCompile(`()\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?`),                        // a token of OpenID Connect
		regexp.MustCompile(`(\bbow_[0-9a-f]{16}_)[\w-]{8,}`),                               // a token of this server; its id is none
		regexp.MustCompile(`()\b(?:AKIA|ASIA)[A-Z0-9]{12,}`),                               // the name of a key of AWS
		regexp.MustCompile(`()\bya29\.[\w-]{8,}|()\bgh[pousr]_\w{20,}|()\bAIza[\w-]{20,}`), // of Google, of GitHub
	}
	// credentialName finds the members of a document whose text is a credential.
	credentialName = regexp.MustCompile(`(?i)` + credentialWords + `|authorization`)
)

func parameters(query string) []string {
	return strings.FieldsFunc(query, func(r rune) bool { return r == '&' || r == ';' })
}

// text returns s without secrets.
func (r *redactor) text(s string) string {
	for _, secret := range r.known {
		s = strings.ReplaceAll(s, secret, removed)
	}
	s = addressForm.ReplaceAllStringFunc(s, func(a string) string {
		address := strings.TrimRight(a, ":,.;)") // the rest is of the sentence
		return r.address(address) + a[len(address):]
	})
	for _, form := range credentialForms {
		s = form.ReplaceAllString(s, "${1}"+removed)
	}
	return s
}

// address returns an address without user, password, fragment, and values of parameters
// that may be secret. If it cannot be split with certainty, only the scheme is left.
func (r *redactor) address(s string) string {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return r.text(s)
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	hosts, path := rest[:end], rest[end:]
	at := strings.LastIndexByte(hosts, '@')
	// A password may have an unescaped slash or question mark: its second part then looks
	// like a path or a parameter. An @ behind the hosts is otherwise a name's, as in
	// photos@prod.
	split := strings.Contains(path, "@") && !namedForm.MatchString(s)
	hosts = hosts[at+1:]
	path, _, _ = strings.Cut(path, "#")
	path, query, _ := strings.Cut(path, "?")
	if split || !hostsForm.MatchString(hosts) {
		return scheme + "://" + removed
	}
	if at >= 0 {
		hosts = removed + "@" + hosts
	}
	var kept []string
	for _, pair := range parameters(query) {
		name, value, _ := strings.Cut(pair, "=")
		if plain, err := url.QueryUnescape(value); err == nil && strings.Contains(plain, "://") {
			value = r.address(plain)
		}
		if !plainParameters[name] || !plainValue.MatchString(value) {
			value = removed
		}
		if !plainValue.MatchString(name) {
			name = removed
		}
		kept = append(kept, name+"="+value)
	}
	if len(kept) > 0 {
		path += "?" + strings.Join(kept, "&")
	}
	return scheme + "://" + hosts + path
}

// document returns a JSON document without secrets in its texts.
func (r *redactor) document(data []byte) ([]byte, error) {
	var v any
	d := json.NewDecoder(strings.NewReader(string(data)))
	d.UseNumber() // counters beyond 2^53 stay exact
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	return json.MarshalIndent(r.value(v), "", "  ")
}

func (r *redactor) value(v any) any {
	switch v := v.(type) {
	case string:
		return r.text(v)
	case []any:
		for i := range v {
			v[i] = r.value(v[i])
		}
	case map[string]any:
		clean := make(map[string]any, len(v))
		for name, inside := range v {
			if s, ok := inside.(string); ok && s != "" && credentialName.MatchString(name) {
				inside = removed
			}
			clean[r.text(name)] = r.value(inside)
		}
		return clean
	}
	return v
}
