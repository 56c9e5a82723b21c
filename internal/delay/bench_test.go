package delay_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"bowstring/internal/delay"
)

// BenchmarkConn reads 256 MiB per iteration over loopback, by 4 connections, and reports the CPU time per GB of both
// ends. The cost of a link is the difference to "plain". If the link limits the rate, compare it with a plain
// connection whose reader pauses, because sleeping readers cost the system more CPU time per GB.
func BenchmarkConn(b *testing.B) {
	for _, c := range []struct {
		name   string
		dialer delay.Dialer
	}{
		{"plain", &net.Dialer{}},
		{"plain,6MiB-per-150ms", pausing{6 << 20, 150 * time.Millisecond}},
		{"plain,64KiB-per-655us", pausing{64 << 10, 655 * time.Microsecond}}, // by each of 4 connections: 400 MB/s
		{"rtt=0", delay.New(delay.Config{})},
		{"rtt=20ms", delay.New(delay.Config{RTT: 20 * time.Millisecond})},
		{"rtt=150ms", delay.New(delay.Config{RTT: 150 * time.Millisecond})},
		{"rtt=150ms,bandwidth=400MB", delay.New(delay.Config{RTT: 150 * time.Millisecond, Bandwidth: 400e6})},
		{"rtt=150ms,window=6MiB", delay.New(delay.Config{RTT: 150 * time.Millisecond, Window: 6 << 20})},
	} {
		b.Run(c.name, func(b *testing.B) { download(b, c.dialer) })
		if l, ok := c.dialer.(*delay.Link); ok {
			_ = l.Close()
		}
	}
}

// pausing makes plain connections that read at most a number of bytes in each period.
type pausing struct {
	bytes  int
	period time.Duration
}

func (p pausing) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	return &pausingConn{Conn: c, pausing: p}, err
}

type pausingConn struct {
	net.Conn
	pausing
	next time.Time
	used int
}

func (c *pausingConn) Read(b []byte) (int, error) {
	if c.used >= c.bytes {
		time.Sleep(time.Until(c.next))
		c.used = 0
	}
	if now := time.Now(); c.used == 0 {
		if c.next = c.next.Add(c.period); c.next.Before(now) {
			c.next = now.Add(c.period)
		}
	}
	n, err := c.Conn.Read(b[:min(len(b), c.bytes-c.used)])
	c.used += n
	return n, err
}

const (
	benchConns = 4
	benchBytes = 256 << 20
	reply      = 112_640 // a sample
)

func download(b *testing.B, dialer delay.Dialer) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	var running sync.WaitGroup
	defer running.Wait()
	defer listener.Close()
	running.Go(func() { // sends a reply for each byte that it gets
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer c.Close()
				data, asked := make([]byte, reply), make([]byte, 1024)
				for {
					n, err := c.Read(asked)
					if err != nil {
						return
					}
					for range n {
						if _, err := c.Write(data); err != nil {
							return
						}
					}
				}
			})
		}
	})
	conns := make([]net.Conn, benchConns)
	for i := range conns {
		if conns[i], err = dialer.DialContext(context.Background(), "tcp", listener.Addr().String()); err != nil {
			b.Fatal(err)
		}
		defer conns[i].Close()
	}
	replies := benchBytes / reply / benchConns
	round := func() {
		var reading sync.WaitGroup
		for _, c := range conns {
			reading.Go(func() {
				if _, err := c.Write(make([]byte, replies)); err != nil {
					b.Error(err)
				}
				buf := make([]byte, reply)
				for range replies {
					if _, err := io.ReadFull(c, buf); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		reading.Wait()
	}
	round() // takes the memory
	start := cpu()
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		round()
	}
	b.StopTimer()
	gb := float64(b.N) * float64(benchConns*replies*reply) / 1e9
	b.ReportMetric((cpu()-start).Seconds()/gb, "cpu-s/GB")
	b.ReportMetric(gb*1000/b.Elapsed().Seconds(), "MB/s")
}

// cpu is the CPU time of the process.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(fmt.Sprint("getrusage: ", err))
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
