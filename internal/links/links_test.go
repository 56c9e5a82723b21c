package links

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"bowstring/internal/delay"
	"bowstring/schema"
)

// echo is a server that sends back what it receives, until the test ends.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var clients sync.WaitGroup
	clients.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			clients.Go(func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); clients.Wait() })
	return l.Addr().String()
}

// proxies is one with a link, and a proxy to a server that echoes.
func proxies(t *testing.T) (b *ProxySet, address string) {
	t.Helper()
	b = NewProxySet()
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := b.Link("wire", delay.Config{}); err != nil {
		t.Fatal(err)
	}
	address, err := b.Open("server", "wire", echo(t))
	if err != nil {
		t.Fatal(err)
	}
	return b, address
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func say(t *testing.T, c net.Conn, what string) {
	t.Helper()
	if _, err := io.WriteString(c, what); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, len(what))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != what {
		t.Fatalf("it says %q, %v; want %q", b, err, what)
	}
}

func set(t *testing.T, b *ProxySet, from string, fault Fault) {
	t.Helper()
	if err := b.Set("server", from, fault); err != nil {
		t.Fatal(err)
	}
}

func TestWhatPassesIsCounted(t *testing.T) {
	b, address := proxies(t)
	say(t, dial(t, address), "hello")
	b.Name(os.Getpid(), "me")
	say(t, dial(t, address), "it is me")
	want := []Count{{"server", Anybody, 1, 5, 5}, {"server", "me", 1, 8, 8}}
	if got := b.Counts(); len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A cut ends what is connected, and what is connected later, of whom it befalls alone.
func TestCut(t *testing.T) {
	b, address := proxies(t)
	others := dial(t, address)
	say(t, others, "there")
	b.Name(os.Getpid(), "me")
	own := dial(t, address)
	say(t, own, "there")
	set(t, b, "me", Cut)
	for _, c := range []net.Conn{own, dial(t, address)} {
		if n, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("%d bytes came through a proxy that is cut", n)
		}
	}
	say(t, others, "still there")
	set(t, b, "me", None)
	say(t, dial(t, address), "again")
}

// Held bytes arrive when they are released.
func TestHold(t *testing.T) {
	b, address := proxies(t)
	c := dial(t, address)
	say(t, c, "there")
	set(t, b, Anybody, Hold)
	if _, err := io.WriteString(c, "later"); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond)) // long enough to see it fail
	if n, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes, %v came while all was held", n, err)
	}
	_ = c.SetReadDeadline(time.Time{})
	set(t, b, Anybody, None)
	got := make([]byte, 5)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "later" {
		t.Errorf("got %q, %v", got, err)
	}
}

// A proxies ends while something is held, and while somebody is connected.
func TestCloseWhileHeld(t *testing.T) {
	b, address := proxies(t)
	c := dial(t, address)
	say(t, c, "there")
	set(t, b, Anybody, Hold)
	if _, err := io.WriteString(c, "never"); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.Link("other", delay.Config{}); !errors.Is(err, schema.ErrUnavailable) {
		t.Errorf("a closed set has made a link: %v", err)
	}
}

func TestCommands(t *testing.T) {
	b := NewProxySet()
	defer b.Close()
	in := strings.NewReader(strings.Join([]string{
		`{"link": {"name": "store", "rtt_us": 2500, "bytes_per_s": 1000000}}`,
		`{"link": {"name": "store"}}`,
		`{"open": {"proxy": "a", "link": "other", "to": "127.0.0.1:1"}}`,
		`{"open": {"proxy": "a", "link": "store", "to": "127.0.0.1:1"}}`,
		`{"set": {"proxy": "a", "from": "x", "fault": "bend"}}`,
		`{"set": {"proxy": "b", "from": "x", "fault": "cut"}}`,
		`{"link": {"name": "y", "rtt_us": -1}}`,
		`{"rtt": 1}`,
		`{}`,
	}, "\n"))
	var out strings.Builder
	if err := b.Run(in, &out); err != nil {
		t.Fatal(err)
	}
	got := strings.Split(strings.TrimSpace(out.String()), "\n")
	want := []string{"{}", "exists", "not found", "127.0.0.1:", "fault", "not found", "rtt", "unknown field",
		"one of link"}
	if len(got) != len(want) {
		t.Fatalf("%d answers to %d commands: %s", len(got), len(want), out.String())
	}
	for i := range want {
		if !strings.Contains(got[i], want[i]) {
			t.Errorf("command %d is answered %s, want something of %q", i, got[i], want[i])
		}
	}
}
