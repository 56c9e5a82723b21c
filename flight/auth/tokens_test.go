package auth

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bowstring/schema"
)

// buffer is a log that tests may read while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *buffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *buffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func await(t *testing.T, happened func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !happened(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it did not happen within a minute")
		}
	}
}

func secretOf(token string) string { return token[len(token)-43:] }

// The file has no secret, only its owner can read it, and it is never half written, with
// any number of writers.
func TestTokenFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.json")
	if _, err := ReadTokens(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	const makers, each = 8, 5
	made := make(chan string, makers*each)
	var making sync.WaitGroup
	for range makers {
		making.Go(func() {
			for range each {
				token, err := AddToken(path, &Token{Principal: "alice", Groups: []string{"ml"}, Tenant: "vision"})
				if err != nil {
					t.Error(err)
				}
				made <- token
			}
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		making.Wait()
	}()
	for reading := true; reading; {
		select {
		case <-done:
			reading = false
		default:
		}
		if _, err := ReadTokens(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("while it is written: %v", err)
		}
	}
	close(made)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	var all tokens
	if err := all.load([][]byte{text}); err != nil {
		t.Fatal(err)
	}
	n := 0
	for token := range made {
		n++
		if strings.Contains(string(text), secretOf(token)) {
			t.Fatal("the file has a secret")
		}
		if id, err := all.identify(token, time.Now()); err != nil || id.Principal != "alice" {
			t.Fatalf("%+v, %v", id, err)
		}
	}
	if n != makers*each || len(*all.table.Load()) != n {
		t.Errorf("%d tokens were made, %d are there", n, len(*all.table.Load()))
	}
	if others, err := os.ReadDir(filepath.Dir(path)); err != nil || len(others) != 1 {
		t.Errorf("beside the file there is %v, %v", others, err)
	}
}

// A file that is not right is refused as a whole, by an error that shows nothing
// of what may be a secret.
func TestTokenFileBroken(t *testing.T) {
	good := Token{Principal: "alice"}
	if _, err := NewToken(&good, time.Now()); err != nil {
		t.Fatal(err)
	}
	file := func(change func(*Token)) string {
		bad := good
		change(&bad)
		b, err := json.Marshal(tokenFile{tokenFileVersion, []Token{bad}})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for want, text := range map[string]string{
		"no file of tokens":          "",
		"unknown field":              `{"version":1,"tokns":[]}`,
		"version: got 2":             `{"version":2,"tokens":[]}`,
		"something follows":          `{"version":1,"tokens":[]} x`,
		"want 16 hexadecimal digits": file(func(t *Token) { t.ID = "x" }),
		"sha256 of":                  file(func(t *Token) { t.Hash = "a-secret-that-somebody-put-here" }),
		"principal: got \"\"":        file(func(t *Token) { t.Principal = "" }),
		"group: got \"a\\nb\"":       file(func(t *Token) { t.Groups = []string{"a\nb"} }),
		"tenant: got \"a b\"":        file(func(t *Token) { t.Tenant = "a b" }),
		fmt.Sprintf("id %s", good.ID): strings.Replace(file(func(*Token) {}), `"tokens":[`,
			`"tokens":[`+mustJSON(t, good)+",", 1),
		"cannot unmarshal number": `{"version":1,"tokens":[{"id":3}]}`,
	} {
		_, err := parseTokens([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "a-secret") {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A token ends at its expiry, when it is revoked, taken away or changed; calls
// that it has let in end then.
func TestTokensEnd(t *testing.T) {
	now := time.Now()
	record := Token{Principal: "alice", Expires: now.Add(time.Hour)}
	token, err := NewToken(&record, now)
	if err != nil {
		t.Fatal(err)
	}
	var known tokens
	load := func(list ...Token) {
		if err := known.load([][]byte{[]byte(mustJSON(t, tokenFile{tokenFileVersion, list}))}); err != nil {
			t.Fatal(err)
		}
	}
	changed, revoked := record, record
	changed.Groups, revoked.Revoked = []string{"root"}, now
	for _, tt := range []struct {
		name string
		then []Token
		at   time.Time
		want error
	}{
		{"as it was", []Token{record}, now, nil},
		{"expired", []Token{record}, now.Add(time.Hour), nil}, // an error of its own
		{"revoked", []Token{revoked}, now, errRevoked},
		{"taken away", nil, now, errRevoked},
		{"changed", []Token{changed}, now, errChanged},
	} {
		load(record)
		id, err := known.identify(token, now)
		if err != nil {
			t.Fatal(err)
		}
		s := sessions{live: map[*session]struct{}{}}
		var why error
		stop := s.watch(&id, func(err error) { why = err })
		load(tt.then...)
		s.endAll(tt.at)
		s.endAll(tt.at) // nothing happens twice
		if over := tt.name != "as it was"; over != errors.Is(why, schema.ErrUnauthenticated) || tt.want != nil &&
			!errors.Is(why, tt.want) {
			t.Errorf("%s: %v", tt.name, why)
		}
		stop()
		if len(s.live) != 0 {
			t.Errorf("%s: %d calls are watched still", tt.name, len(s.live))
		}
	}
	load(record)
	for _, bad := range []string{"", "bow_", token + "A", token[1:], strings.ToUpper(token),
		strings.Replace(token, "bow_", "bow-", 1)} {
		if _, err := known.identify(bad, now); !errors.Is(err, errToken) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := known.identify(token, now.Add(time.Hour)); !errors.Is(err, errExpired) {
		t.Errorf("expired: %v", err)
	}
}

// A broken file changes nothing, and the log says so, once; the next good one
// counts.
func TestTokensReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.json")
	first, err := AddToken(path, &Token{Principal: "alice"})
	if err != nil {
		t.Fatal(err)
	}
	log := &buffer{}
	d, err := New(t.Context(), Options{Tokens: path, Poll: 5 * time.Millisecond, Recheck: 5 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	known := func(token string) bool {
		_, err := d.tokens.identify(token, time.Now())
		return err == nil
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, broken := range [][]byte{[]byte("{"), good[:len(good)/2], nil} {
		before := strings.Count(log.String(), "stays in force")
		// By renaming: while a file is written it is empty for a moment, and to be empty later would be no news.
		if err := errors.Join(os.WriteFile(path+".new", broken, 0o600), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
		await(t, func() bool { return strings.Count(log.String(), "stays in force") > before })
		if !known(first) {
			t.Errorf("%q took the tokens away", broken)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { return strings.Contains(log.String(), "no such file") })
	if err := os.WriteFile(path, good, 0o600); err != nil {
		t.Fatal(err)
	}
	second, err := AddToken(path, &Token{Principal: "bob"})
	if err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { return known(second) })
	if !known(first) {
		t.Error("the first token is gone")
	}
	if _, err := RevokeToken(path, first[len(tokenPrefix):][:2*idBytes]); err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { return !known(first) })
	if strings.Contains(log.String(), secretOf(first)) {
		t.Error("the log has a secret")
	}
}

// Whatever comes to stand where the file was, the tokens before stay in force, and the
// next good file counts, by whatever link it is reached.
func TestTokensSwapped(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "tokens.json")
	first, err := AddToken(path, &Token{Principal: "alice"})
	if err != nil {
		t.Fatal(err)
	}
	log := &buffer{}
	d, err := New(t.Context(), Options{Tokens: path, Poll: 5 * time.Millisecond, Recheck: 5 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	known := func(token string) bool {
		_, err := d.tokens.identify(token, time.Now())
		return err == nil
	}
	next := filepath.Join(dir, "next")
	for name, put := range map[string]func() error{
		"pipe":            func() error { return unix.Mkfifo(next, 0o600) },
		"endless":         func() error { return os.Symlink("/dev/zero", next) },
		"folder":          func() error { return os.Symlink(dir, next) },
		"link to nothing": func() error { return os.Symlink(filepath.Join(dir, "nothing"), next) },
		"link to itself":  func() error { return os.Symlink(path, next) },
		"another's":       func() error { return os.Symlink("/etc/passwd", next) },
	} {
		if err := put(); err != nil {
			t.Fatal(err)
		}
		before := strings.Count(log.String(), "stays in force")
		if err := os.Rename(next, path); err != nil {
			t.Fatal(err)
		}
		await(t, func() bool { return strings.Count(log.String(), "stays in force") > before })
		if !known(first) {
			t.Errorf("%s: it took the tokens away", name)
		}
	}
	elsewhere := filepath.Join(dir, "elsewhere.json")
	second, err := AddToken(elsewhere, &Token{Principal: "bob"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, next); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { return known(second) && !known(first) })
	if strings.Contains(log.String(), "root:") || strings.Contains(log.String(), secretOf(first)) {
		t.Error("the log shows what stands in a file")
	}
}
