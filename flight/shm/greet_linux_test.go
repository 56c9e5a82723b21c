package shm

import (
	"bytes"
	"encoding/hex"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bowstring/internal/shmtest"
)

// Rings are given to callers who know their key, and each is of use to its caller alone.
func TestRingsAreTheirCallers(t *testing.T) {
	s := listen(t, Options{RingBytes: 1 << 20})
	g, err := shmtest.Visit(s.Path(), "alice", s.Key("alice"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	for _, other := range []string{"", "bob", "alice "} {
		if s.Ring(g.Ring, other) != nil {
			t.Errorf("caller %q was given the ring of alice", other)
		}
	}
	r := s.Ring(g.Ring, "alice")
	if r == nil {
		t.Fatal("alice was not given her ring")
	}
	r.Leave()
}

// A client that cannot prove who it is gets no ring, and takes no memory.
func TestClientsThatProveNothing(t *testing.T) {
	s := listen(t, Options{RingBytes: 1 << 20})
	nonce := strings.Repeat("ab", nonceBytes)
	for name, say := range map[string]func(ofServer string) shmtest.Message{
		"the key of another caller": func(n string) shmtest.Message {
			return shmtest.Message{Proof: shmtest.Proof(s.Key("bob"), clientProves, nonce, n)}
		},
		"the server's own proof": func(n string) shmtest.Message {
			return shmtest.Message{Proof: shmtest.Proof(s.Key("alice"), serverProves, nonce, n)}
		},
		"a proof for another connection": func(string) shmtest.Message {
			return shmtest.Message{Proof: shmtest.Proof(s.Key("alice"), clientProves, nonce, nonce)}
		},
		"nothing": func(string) shmtest.Message { return shmtest.Message{} },
	} {
		c, err := shmtest.Dial(s.Path())
		if err != nil {
			t.Fatal(err)
		}
		if err := shmtest.Say(c, shmtest.Message{Version: Version, Caller: "alice", Nonce: nonce}); err != nil {
			t.Fatal(err)
		}
		shown, _, err := shmtest.Hear(c)
		if err != nil {
			t.Fatal(err)
		}
		if shown.Server != s.Name() || shown.Version != Version {
			t.Errorf("the server says it is %+v", shown)
		}
		if err := shmtest.Say(c, say(shown.Nonce)); err != nil {
			t.Fatal(err)
		}
		if m, file, err := shmtest.Hear(c); err == nil || file != nil {
			t.Errorf("a client that shows %s gets %+v, with a file: %t", name, m, file != nil)
		}
		_ = c.Close()
	}
	if st := s.Stats(); st.Given != 0 || st.Bytes != 0 {
		t.Errorf("%+v", st)
	}
}

// The server refuses malformed messages before it makes a proof.
func TestHellosThatMakeNoSense(t *testing.T) {
	s := listen(t, Options{RingBytes: 1 << 20})
	for _, m := range []shmtest.Message{
		{Version: 1, Nonce: strings.Repeat("ab", nonceBytes)},
		{Version: Version},
		{Version: Version, Nonce: "ab"},
		{Version: Version, Nonce: strings.Repeat("x", 2*nonceBytes)},
		{Version: Version, Nonce: strings.Repeat("ab", nonceBytes+1)},
	} {
		c, err := shmtest.Dial(s.Path())
		if err != nil {
			t.Fatal(err)
		}
		if err := shmtest.Say(c, m); err != nil {
			t.Fatal(err)
		}
		if shown, _, err := shmtest.Hear(c); err != nil || shown.Error == "" || shown.Proof != "" {
			t.Errorf("to %+v the server says %+v, %v", m, shown, err)
		}
		_ = c.Close()
	}
}

// A client that says nothing takes a descriptor of the server's, so a user has 128 at most. Those that go make
// room.
func TestSilentClientsAreBounded(t *testing.T) {
	s := listen(t, Options{RingBytes: 1 << 20})
	silent := 0
	for range maxGreeted {
		c, err := shmtest.Dial(s.Path())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		silent++
	}
	for end := time.Now().Add(greetWithin / 2); ; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not all clients are greeted")
		}
		s.mu.Lock()
		waiting := 0
		for _, n := range s.greeted {
			waiting += n
		}
		s.mu.Unlock()
		if waiting == silent {
			break
		}
	}
	c, err := shmtest.Dial(s.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if m, _, err := shmtest.Hear(c); err == nil {
		t.Errorf("one more client gets %+v", m)
	}
}

// Keys differ between callers and between servers, and say nothing of each other.
func TestKeys(t *testing.T) {
	one, two := listen(t, Options{RingBytes: 1 << 20}), listen(t, Options{RingBytes: 1 << 20})
	seen := map[string]string{}
	for name, key := range map[string][]byte{
		"alice": one.Key("alice"), "bob": one.Key("bob"), "": one.Key(""), "alice elsewhere": two.Key("alice"),
	} {
		if other, ok := seen[hex.EncodeToString(key)]; ok || len(key) != 32 {
			t.Errorf("the keys of %q and %q are the same %d bytes", name, other, len(key))
		}
		seen[hex.EncodeToString(key)] = name
	}
	if again := one.Key("alice"); seen[hex.EncodeToString(again)] != "alice" {
		t.Error("a caller has two keys")
	}
}

// A folder in which others can take the socket's place is warned of, and one with the sticky bit is not such.
func TestFoldersOfOthersAreWarnedOf(t *testing.T) {
	for mode, warned := range map[os.FileMode]bool{0o755: false, 0o777: true, 0o770: true, 0o777 | os.ModeSticky: false} {
		folder := t.TempDir()
		if err := os.Chmod(folder, mode); err != nil {
			t.Fatal(err)
		}
		var said bytes.Buffer
		s, err := Listen(Options{Path: filepath.Join(folder, "s"), Logger: slog.New(slog.NewTextHandler(&said, nil))})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(said.String(), "replace the socket"); got != warned {
			t.Errorf("%v: the server says %q", mode, said.String())
		}
	}
}
