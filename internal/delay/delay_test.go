package delay_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"bowstring/internal/delay"
	"bowstring/internal/leaktest"
	"bowstring/schema"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const (
	ms  = time.Millisecond
	rtt = 100 * ms
)

// halves is a connection in memory of which each direction is a net.Pipe, so that
// one can be closed without the other.
type halves struct {
	net.Conn          // what is written to
	from     net.Conn // what is read from
}

func (h halves) Read(b []byte) (int, error)        { return h.from.Read(b) }
func (h halves) SetReadDeadline(t time.Time) error { return h.from.SetReadDeadline(t) }
func (h halves) CloseWrite() error                 { return h.Conn.Close() }
func (h halves) Close() error                      { return errors.Join(h.Conn.Close(), h.from.Close()) }

// servers is a dialer whose connections lead to the test.
type servers chan net.Conn

func (s servers) DialContext(context.Context, string, string) (net.Conn, error) {
	upFrom, upTo := net.Pipe()
	downFrom, downTo := net.Pipe()
	s <- halves{downTo, upFrom}
	return halves{upTo, downFrom}, nil
}

// through runs f in a bubble, where time passes only when all wait, with a link.
func through(t *testing.T, config delay.Config, f func(t *testing.T, l *delay.Link,
	dial func() (client, server net.Conn))) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		far := make(servers, 1)
		config.Dialer = far
		l := delay.New(config)
		defer l.Close()
		f(t, l, func() (net.Conn, net.Conn) {
			client, err := l.DialContext(t.Context(), "tcp", "far:1")
			if err != nil {
				t.Fatal(err)
			}
			return client, <-far
		})
	})
}

// clock says how much time has passed since it was made.
func clock() func() time.Duration {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}

func write(t *testing.T, c net.Conn, n int) {
	t.Helper()
	if _, err := c.Write(make([]byte, n)); err != nil {
		t.Error(err)
	}
}

func read(t *testing.T, c net.Conn, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(c, b); err != nil {
		t.Error(err)
	}
	return b
}

func equal[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// within compares up to a share of want.
func within(t *testing.T, what string, got, want, share float64) {
	t.Helper()
	if got < want*(1-share) || got > want*(1+share) {
		t.Errorf("%s: got %.4g, want %.4g give or take %.2g%%", what, got, want, 100*share)
	}
}

func TestLatency(t *testing.T) {
	for _, rtt := range []time.Duration{0, rtt} {
		through(t, delay.Config{RTT: rtt}, func(t *testing.T, _ *delay.Link, dial func() (net.Conn, net.Conn)) {
			since := clock()
			client, server := dial()
			equal(t, "handshake", since(), rtt)
			go func() {
				write(t, client, 10)
				equal(t, "a write returns", since(), rtt)
			}()
			read(t, server, 10)
			equal(t, "the request arrives", since(), 2*rtt)
			go write(t, server, 300_000)
			read(t, client, 300_000)
			equal(t, "the answer arrives", since(), 2*rtt)
		})
	}
}

func TestRefusedDialTakesARoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := errors.New("refused")
		l := delay.New(delay.Config{RTT: rtt, Dialer: dialFunc(func() (net.Conn, error) { return nil, refused })})
		since := clock()
		_, err := l.DialContext(t.Context(), "tcp", "far:1")
		equal(t, "refused", errors.Is(err, refused), true)
		equal(t, "refused", since(), rtt)
	})
}

type dialFunc func() (net.Conn, error)

func (f dialFunc) DialContext(context.Context, string, string) (net.Conn, error) { return f() }

func TestDialEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		far := make(servers, 1)
		l := delay.New(delay.Config{RTT: rtt, Dialer: far})
		why := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 30*ms, why)
		defer cancel()
		since := clock()
		_, err := l.DialContext(ctx, "tcp", "far:1")
		equal(t, "cause", errors.Is(err, why), true)
		equal(t, "time", since(), 30*ms)
		_, err = (<-far).Read(make([]byte, 1))
		equal(t, "server sees the end", err, io.EOF)
	})
}

func TestOrderIsKeptUnderJitter(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	data := make([]byte, 3_000_000)
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	config := delay.Config{RTT: rtt, Jitter: 40 * ms, Seed: seed, Window: 1 + rng.Int64N(200_000),
		Bandwidth: 1e7 + rng.Int64N(1e8)}
	through(t, config, func(t *testing.T, _ *delay.Link, dial func() (net.Conn, net.Conn)) {
		client, server := dial()
		sizes := func() int { return 1 + rng.IntN(1<<rng.IntN(18)) }
		var pieces []int
		for n := 0; n < len(data); {
			size := min(sizes(), len(data)-n)
			pieces = append(pieces, size)
			n += size
		}
		go func() { // the server sends back what it gets
			if _, err := io.Copy(server, server); err != nil {
				t.Error(err)
			}
			_ = server.Close()
		}()
		go func() {
			rest := data
			for _, n := range pieces {
				if _, err := client.Write(rest[:n]); err != nil {
					t.Error(err)
				}
				rest = rest[n:]
			}
			if err := client.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
				t.Error(err)
			}
		}()
		var got bytes.Buffer
		if _, err := io.CopyBuffer(struct{ io.Writer }{&got}, client, make([]byte, 10_000)); err != nil {
			t.Error(err)
		}
		equal(t, "the same bytes", bytes.Equal(got.Bytes(), data), true)
	})
}

// arrivals are the times at which single chunks arrive, of several connections.
func arrivals(t *testing.T, seed uint64) (times [3][20]time.Duration) {
	through(t, delay.Config{RTT: rtt, Jitter: 10 * ms, Seed: seed},
		func(t *testing.T, _ *delay.Link, dial func() (net.Conn, net.Conn)) {
			for k := range times {
				client, server := dial()
				for n := range times[k] {
					since := clock()
					write(t, client, 1)
					read(t, server, 1)
					times[k][n] = since()
					if d := times[k][n]; d < rtt || d > rtt+10*ms+rtt/1000 {
						t.Errorf("seed %d: connection %d, chunk %d: delay %s", seed, k, n, d)
					}
				}
			}
		})
	return times
}

func TestSeedDetermines(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	a, b, c := arrivals(t, seed), arrivals(t, seed), arrivals(t, seed+1)
	equal(t, "the same seed gives the same", a == b, true)
	equal(t, "another seed gives the same", a == c, false)
	equal(t, "another connection gives the same", a[0] == a[2], false)
}

func TestReadAllocatesNothing(t *testing.T) {
	for _, config := range []delay.Config{{}, {RTT: 2 * ms, Window: 1 << 20, Bandwidth: 1e9}} {
		through(t, config, func(t *testing.T, _ *delay.Link, dial func() (net.Conn, net.Conn)) {
			client, server := dial()
			go func() { _, _ = io.Copy(server, server) }()
			defer server.Close()
			b := make([]byte, 10_000)
			if n := testing.AllocsPerRun(100, func() {
				if _, err := client.Write(b); err != nil {
					t.Error(err)
				}
				if _, err := io.ReadFull(client, b); err != nil {
					t.Error(err)
				}
			}); n > 0 {
				t.Errorf("%+v: %v allocations", config, n)
			}
		})
	}
}

func TestConfigCheck(t *testing.T) {
	for _, bad := range []delay.Config{{RTT: -1}, {Jitter: 2 * time.Hour}, {Bandwidth: -1}, {Window: -1},
		{SlowShare: 1.5}, {SlowShare: -0.1}, {SlowBy: -1}, {Loss: 1, Window: 1}, {Loss: -0.1, Window: 1}, {Loss: 0.1}} {
		var fault *schema.FieldError
		if err := bad.Check(); !errors.As(err, &fault) {
			t.Errorf("%+v: got %v, want a FieldError", bad, err)
		}
	}
	if err := (&delay.Config{RTT: rtt, SlowShare: 1}).Check(); err != nil {
		t.Error(err)
	}
}
