package delay_test

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bowstring/internal/delay"
)

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

// TestLossCostsRoundTrips reads windows that each lose packets. The bytes behind the first
// one come a round trip later, and no later, because all packets are sent again together. The
// bytes before it make room for the next window in time.
func TestLossCostsRoundTrips(t *testing.T) {
	const window, rounds = 1 << 20, 20
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	through(t, delay.Config{RTT: rtt, Window: window, Loss: 0.05, Seed: seed},
		func(t *testing.T, _ *delay.Link, dial func() (net.Conn, net.Conn)) {
			client, server := dial()
			since := clock()
			go write(t, server, rounds*window)
			read(t, client, rounds*window)
			if took := since(); took < rounds*rtt*5/4 || took > rounds*2*rtt {
				t.Errorf("%d windows with losses took %s, want more than %s, and %s at most", rounds, took, rounds*rtt,
					rounds*2*rtt)
			}
		})
}

// TestLossIsTheShareOfPackets sends single packets. A lost one takes a round trip more.
func TestLossIsTheShareOfPackets(t *testing.T) {
	const packets, loss = 2_000, 0.1
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for name, fromClient := range map[string]bool{"sent": true, "received": false} {
		through(t, delay.Config{RTT: rtt, Window: 1460, Loss: loss, Seed: seed},
			func(t *testing.T, _ *delay.Link, dial func() (net.Conn, net.Conn)) {
				client, server := dial()
				from, to := server, client
				if fromClient {
					from, to = client, server
				}
				late, usual := 0, time.Duration(0)
				if fromClient {
					usual = rtt
				}
				for range packets {
					time.Sleep(4 * rtt) // fake: the packet before is acknowledged
					since := clock()
					go write(t, from, 1460)
					read(t, to, 1460)
					switch took := since(); {
					case took >= usual+rtt:
						late++
					case took > usual+rtt/1000:
						t.Fatalf("%s: a packet took %s", name, took)
					}
				}
				// Six standard deviations: 0.1 ± 0.04.
				if share := float64(late) / packets; share < loss-0.04 || share > loss+0.04 {
					t.Errorf("%s: %v of the packets were late, want %v", name, share, loss)
				}
			})
	}
}
