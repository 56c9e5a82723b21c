package delay_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"bowstring/fetch/store/delay"
	"bowstring/schema"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

// both runs f with what is sent from the client (up), which takes a round trip, and from the server.
func both(t *testing.T, config delay.Config, f func(t *testing.T, takes time.Duration,
	dial func() (from, to net.Conn))) {
	t.Helper()
	through(t, config, func(t *testing.T, _ *delay.Link, dial func() (net.Conn, net.Conn)) { f(t, config.RTT, dial) })
	through(t, config, func(t *testing.T, _ *delay.Link, dial func() (net.Conn, net.Conn)) {
		f(t, 0, func() (net.Conn, net.Conn) {
			client, server := dial()
			return server, client
		})
	})
}

func TestWindowBoundsThroughput(t *testing.T) {
	const window, rounds = 1 << 20, 20
	both(t, delay.Config{RTT: rtt, Window: window},
		func(t *testing.T, takes time.Duration, dial func() (from, to net.Conn)) {
			from, to := dial()
			since := clock()
			go write(t, from, rounds*window)
			read(t, to, rounds*window)
			// Each window but the first waits for the one before to be acknowledged.
			equal(t, "time", since(), takes+(rounds-1)*rtt)
		})
}

func TestWindowHoldsForEachSpanOfARoundTrip(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	const window = 200_000
	through(t, delay.Config{RTT: rtt, Window: window},
		func(t *testing.T, _ *delay.Link, dial func() (net.Conn, net.Conn)) {
			client, server := dial()
			go func() {
				write(t, server, 5_000_000)
				_ = server.Close()
			}()
			type piece struct {
				at time.Duration
				n  int
			}
			var span []piece
			under, most := 0, 0
			since := clock()
			for {
				n, err := client.Read(make([]byte, 1+rng.IntN(100_000)))
				if err != nil {
					break
				}
				span, under = append(span, piece{since(), n}), under+n
				for span[0].at+rtt <= since() {
					span, under = span[1:], under-span[0].n
				}
				most = max(most, under)
				time.Sleep(time.Duration(rng.Int64N(int64(rtt / 10)))) // fake
			}
			if most > window || most < window*15/16 {
				t.Errorf("most that was read in a round trip: %d", most)
			}
		})
}

func TestWindowOfASlowReader(t *testing.T) {
	const window = 1 << 20
	through(t, delay.Config{RTT: rtt, Window: window},
		func(t *testing.T, _ *delay.Link, dial func() (net.Conn, net.Conn)) {
			client, server := dial()
			if err := client.SetWriteDeadline(time.Now().Add(time.Hour)); err != nil {
				t.Fatal(err)
			}
			n, err := client.Write(make([]byte, 4*window))
			equal(t, "the server reads nothing: sent", n, window)
			equal(t, "the server reads nothing: deadline", errors.Is(err, os.ErrDeadlineExceeded), true)
			_ = server.Close()
		})
}

func TestBandwidthIsShared(t *testing.T) {
	const bandwidth, conns, each = 10_000_000, 4, 5_000_000
	both(t, delay.Config{RTT: rtt, Bandwidth: bandwidth},
		func(t *testing.T, takes time.Duration, dial func() (from, to net.Conn)) {
			var ends [conns]time.Duration
			var running sync.WaitGroup
			var pairs [conns][2]net.Conn
			for i := range pairs {
				pairs[i][0], pairs[i][1] = dial()
			}
			since := clock()
			for i, p := range pairs {
				running.Go(func() { write(t, p[0], each) })
				running.Go(func() {
					read(t, p[1], each)
					ends[i] = since()
				})
			}
			running.Wait()
			whole := (takes + conns*each*time.Second/bandwidth).Seconds()
			within(t, "all", since().Seconds(), whole, 1e-3)
			for _, end := range ends {
				within(t, "each, as they take turns", end.Seconds(), whole, 0.01)
			}
		})
}

func TestBandwidthDelaysAnAnswer(t *testing.T) {
	const bandwidth, size = 1_000_000, 200_000
	through(t, delay.Config{RTT: rtt, Bandwidth: bandwidth},
		func(t *testing.T, _ *delay.Link, dial func() (net.Conn, net.Conn)) {
			client, server := dial()
			go func() {
				read(t, server, 1)
				write(t, server, size)
			}()
			since := clock()
			write(t, client, 1)
			read(t, client, size)
			within(t, "seconds", since().Seconds(), (rtt + size*time.Second/bandwidth).Seconds(), 1e-2)
		})
}

func TestSlowStartDoubles(t *testing.T) {
	const first, rounds, limit = 14600, 6, 14600 << 3
	both(t, delay.Config{RTT: rtt, SlowStart: true, Window: limit},
		func(t *testing.T, takes time.Duration, dial func() (from, to net.Conn)) {
			from, to := dial()
			since := clock()
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = from.Write(make([]byte, 10*limit))
			}()
			var got [rounds]int
			b := make([]byte, 2*limit)
			for {
				n, err := to.Read(b)
				round := int((since() - takes) / rtt)
				if err != nil || round == rounds {
					break
				}
				got[round] += n
			}
			equal(t, "bytes in each round trip", got, [rounds]int{first, 2 * first, 4 * first, limit, limit, limit})
			_ = from.Close()
			_ = to.Close()
			<-done
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

func TestEnd(t *testing.T) {
	config := delay.Config{RTT: rtt}
	through(t, config, func(t *testing.T, _ *delay.Link, dial func() (net.Conn, net.Conn)) {
		client, server := dial()
		since := clock()
		write(t, client, 100_000)
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		equal(t, "Close does not wait", since(), 0)
		data, err := io.ReadAll(server)
		equal(t, "the server's error", err, nil)
		equal(t, "what was written before", len(data), 100_000)
		equal(t, "the end arrives", since(), rtt)
		_, err = client.Write([]byte("x"))
		equal(t, "write after Close", errors.Is(err, net.ErrClosed), true)
		_, err = client.Read(make([]byte, 1))
		equal(t, "read after Close", errors.Is(err, net.ErrClosed), true)
		equal(t, "Close again", errors.Is(client.Close(), net.ErrClosed), true)
		equal(t, "deadline after Close", errors.Is(client.SetDeadline(time.Now()), net.ErrClosed), true)
	})
	through(t, config, func(t *testing.T, _ *delay.Link, dial func() (net.Conn, net.Conn)) {
		client, server := dial()
		go func() {
			write(t, server, 100_000)
			_ = server.Close()
		}()
		data, err := io.ReadAll(client)
		equal(t, "error", err, nil)
		equal(t, "what was written before the server's end", len(data), 100_000)
		// The server is gone: the first write finds that out, a later one is told.
		write(t, client, 1)
		time.Sleep(rtt) // fake
		synctest.Wait()
		_, err = client.Write([]byte("x"))
		equal(t, "write to nobody", errors.Is(err, io.ErrClosedPipe), true)
	})
	through(t, config, func(t *testing.T, _ *delay.Link, dial func() (net.Conn, net.Conn)) {
		client, server := dial()
		since := clock()
		if err := client.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Error(err)
		}
		data, err := io.ReadAll(server)
		equal(t, "half of it ends", err, nil)
		equal(t, "half of it ends", since(), rtt)
		equal(t, "half of it ends", len(data), 0)
		_, err = client.Write([]byte("x"))
		equal(t, "write after CloseWrite", errors.Is(err, net.ErrClosed), true)
		go write(t, server, 7)
		read(t, client, 7)
	})
}

func TestErrors(t *testing.T) {
	broken := errors.New("broken")
	synctest.Test(t, func(t *testing.T) {
		far := make(servers, 1)
		l := delay.New(delay.Config{RTT: rtt, Dialer: dialFunc(func() (net.Conn, error) {
			c, err := far.DialContext(t.Context(), "tcp", "far:1")
			return failing{c, broken}, err
		})})
		defer l.Close()
		client, err := l.DialContext(t.Context(), "tcp", "far:1")
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = (<-far).Close() }()
		_, err = client.Read(make([]byte, 1))
		equal(t, "error", errors.Is(err, broken), true)
	})
}

// failing gives another error than the end of the stream.
type failing struct {
	net.Conn
	err error
}

func (f failing) Read(b []byte) (int, error) {
	n, err := f.Conn.Read(b)
	if err != nil {
		err = f.err
	}
	return n, err
}

func TestDeadlines(t *testing.T) {
	through(t, delay.Config{RTT: rtt, Window: 64 << 10},
		func(t *testing.T, _ *delay.Link, dial func() (net.Conn, net.Conn)) {
			client, server := dial()
			since := clock()
			timedOut := func(what string, err error, at time.Duration) {
				t.Helper()
				var timeout net.Error
				equal(t, what, errors.Is(err, os.ErrDeadlineExceeded) && errors.As(err, &timeout) && timeout.Timeout(),
					true)
				equal(t, what, since(), at)
			}
			b := make([]byte, 1)
			_ = client.SetReadDeadline(time.Now().Add(20 * ms))
			_, err := client.Read(b)
			timedOut("read", err, 20*ms)
			_, err = client.Read(b)
			timedOut("read again", err, 20*ms)
			// A deadline that is set while Read waits holds for it.
			_ = client.SetReadDeadline(time.Time{})
			go func() {
				time.Sleep(10 * ms) // fake
				_ = client.SetReadDeadline(time.Now().Add(10 * ms))
			}()
			_, err = client.Read(b)
			timedOut("read, set later", err, 40*ms)
			// Data that arrives before its deadline is read, and the deadline can be lifted.
			go write(t, server, 2)
			_ = client.SetReadDeadline(time.Now().Add(rtt))
			if _, err = client.Read(b); err != nil {
				t.Error(err)
			}
			equal(t, "read in time", since(), 40*ms)
			_ = client.SetDeadline(time.Now().Add(-1))
			_, err = client.Read(b)
			timedOut("a deadline in the past", err, 40*ms)
			_, err = client.Write(b)
			timedOut("a deadline in the past", err, 40*ms)
			_ = client.SetDeadline(time.Time{})
			if _, err = client.Read(b); err != nil {
				t.Error(err)
			}
		})
}

// limited are configurations in which a Read, or a Write, of more than 64 KiB waits for a
// limit: for 1 s, by one of 64 KiB.
var limited = map[string]delay.Config{
	"window":    {RTT: time.Second, Window: 64 << 10},
	"bandwidth": {RTT: time.Second, Bandwidth: 64 << 10},
}

func TestDeadlinesWhileWaitingForALimit(t *testing.T) {
	for name, config := range limited {
		through(t, config, func(t *testing.T, _ *delay.Link, dial func() (net.Conn, net.Conn)) {
			client, server := dial()
			go func() { _, _ = server.Write(make([]byte, 1<<20)) }()
			defer server.Close()
			since := clock()
			_ = client.SetDeadline(time.Now().Add(20 * ms))
			got, err := io.Copy(io.Discard, client)
			equal(t, name+": read", errors.Is(err, os.ErrDeadlineExceeded), true)
			equal(t, name+": read", since(), 20*ms)
			_ = client.SetDeadline(time.Now().Add(20 * ms))
			n, err := client.Write(make([]byte, 1<<20))
			equal(t, name+": write", errors.Is(err, os.ErrDeadlineExceeded), true)
			equal(t, name+": write", since(), 40*ms)
			if got == 0 || got > 64<<10 || n == 0 || n > 64<<10 {
				t.Errorf("%s: %d bytes read, %d written before the deadline", name, got, n)
			}
			_ = client.SetDeadline(time.Time{})
			read(t, client, 64<<10)
			within(t, name+": goes on", since().Seconds(), 1, 0.1)
		})
	}
}

func TestCloseUnblocksWhatWaitsForALimit(t *testing.T) {
	for name, config := range limited {
		through(t, config, func(t *testing.T, _ *delay.Link, dial func() (net.Conn, net.Conn)) {
			client, server := dial()
			go func() { _, _ = server.Write(make([]byte, 1<<20)) }()
			defer server.Close()
			var running sync.WaitGroup
			running.Go(func() {
				_, err := io.Copy(io.Discard, client)
				equal(t, name+": read", errors.Is(err, net.ErrClosed), true)
			})
			running.Go(func() {
				_, err := client.Write(make([]byte, 1<<20))
				equal(t, name+": write", errors.Is(err, net.ErrClosed), true)
			})
			synctest.Wait()
			since := clock()
			_ = client.Close()
			running.Wait()
			equal(t, name+": at once", since(), 0)
		})
	}
}

func TestServerThatDoesNotRead(t *testing.T) {
	through(t, delay.Config{RTT: rtt}, func(t *testing.T, _ *delay.Link, dial func() (net.Conn, net.Conn)) {
		client, _ := dial()
		write(t, client, 20<<20) // is all under way
		_ = client.SetWriteDeadline(time.Now().Add(time.Second))
		time.Sleep(rtt) // fake
		synctest.Wait()
		n, err := client.Write(make([]byte, 1))
		equal(t, "sent", n, 0)
		equal(t, "deadline", errors.Is(err, os.ErrDeadlineExceeded), true)
		since := clock()
		_ = client.Close()
		synctest.Wait()
		equal(t, "Close does not wait", since(), 0)
	})
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

func TestCloseUnblocks(t *testing.T) {
	through(t, delay.Config{RTT: rtt, Window: 64 << 10},
		func(t *testing.T, _ *delay.Link, dial func() (net.Conn, net.Conn)) {
			client, _ := dial()
			var running sync.WaitGroup
			for range 3 {
				running.Go(func() {
					_, err := client.Read(make([]byte, 1))
					equal(t, "read", errors.Is(err, net.ErrClosed), true)
				})
				running.Go(func() {
					_, err := client.Write(make([]byte, 1<<20))
					equal(t, "write", errors.Is(err, net.ErrClosed), true)
				})
			}
			synctest.Wait()
			since := clock()
			_ = client.Close()
			running.Wait()
			equal(t, "at once", since(), 0)
		})
}

func TestLinkCloseCuts(t *testing.T) {
	through(t, delay.Config{RTT: rtt}, func(t *testing.T, l *delay.Link, dial func() (net.Conn, net.Conn)) {
		client, server := dial()
		write(t, client, 10)
		since := clock()
		equal(t, "close", l.Close(), nil)
		equal(t, "waits for no delay", since(), 0)
		_, err := client.Write(make([]byte, 1))
		equal(t, "write", errors.Is(err, net.ErrClosed), true)
		_, err = server.Read(make([]byte, 1))
		equal(t, "the server sees it", err, io.EOF)
		_, err = l.DialContext(t.Context(), "tcp", "far:1")
		equal(t, "dial", errors.Is(err, net.ErrClosed), true)
	})
}

func TestConfigCheck(t *testing.T) {
	for _, bad := range []delay.Config{{RTT: -1}, {Jitter: 2 * time.Hour}, {Bandwidth: -1}, {Window: -1},
		{SlowShare: 1.5}, {SlowShare: -0.1}, {SlowBy: -1}} {
		var fault *schema.FieldError
		if err := bad.Check(); !errors.As(err, &fault) {
			t.Errorf("%+v: got %v, want a FieldError", bad, err)
		}
	}
	if err := (&delay.Config{RTT: rtt, SlowShare: 1}).Check(); err != nil {
		t.Error(err)
	}
}
