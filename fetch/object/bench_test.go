package object_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"bowstring/fetch/object"
	"bowstring/internal/authtest"
	"bowstring/internal/objecttest"
	"bowstring/schema"
)

// serverVariable makes the test's program a server in a process of its own, so that the
// measured CPU time is the reader's only.
const serverVariable = "BOWSTRING_OBJECT_BENCH"

const benchSize = 64 << 20

func TestMain(m *testing.M) {
	if mode := os.Getenv(serverVariable); mode != "" {
		if err := serveBench(mode); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if url := os.Getenv(counterVariable); url != "" {
		if err := count(url); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	runTests(m)
}

// serveBench serves until its standard input ends.
func serveBench(mode string) error {
	cfg := objecttest.Config{}
	if cert, key, ok := strings.Cut(mode, ","); ok {
		c, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return err
		}
		cfg.TLS = &c
	}
	s, err := objecttest.Start(cfg)
	if err != nil {
		return err
	}
	s.PutObject("bucket", "k", make([]byte, benchSize))
	fmt.Println(s.URL("bucket"))
	_, _ = bufio.NewReader(os.Stdin).ReadByte()
	return s.Close()
}

// BenchmarkRange reads ranges from a server in another process: ns/op and allocations are
// the reader's, cpu-us/op its CPU time including the kernel's.
func BenchmarkRange(b *testing.B) {
	for _, c := range []struct {
		name string
		size int
		tls  bool
	}{{"100KB/http", 100_000, false}, {"100KB/tls", 100_000, true}, {"8MiB/http", 8 << 20, false}, {"8MiB/tls", 8 << 20,
		true}} {
		b.Run(c.name, func(b *testing.B) {
			mode, opts := "http", object.Options{Keys: &testKeys}
			if c.tls {
				ca := authtest.NewAuthority(b, "authority")
				pair, dir := ca.Server(b), b.TempDir()
				mode = authtest.Write(b, dir, "cert.pem", pair.Cert) + "," + authtest.Write(b, dir, "key.pem", pair.Key)
				opts.CAFile = authtest.Write(b, dir, "ca.pem", ca.PEM)
			}
			bucket, err := object.Open(b.Context(), startBench(b, mode), opts)
			if err != nil {
				b.Fatal(err)
			}
			defer bucket.Close()
			info, err := bucket.Stat(b.Context(), "k")
			if err != nil {
				b.Fatal(err)
			}
			benchRange(b, bucket, info.Version, c.size)
		})
	}
}

func startBench(b *testing.B, mode string) string {
	b.Helper()
	c := exec.CommandContext(context.Background(), os.Args[0])
	c.Env = append(os.Environ(), serverVariable+"="+mode)
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := c.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = in.Close()
		_ = c.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(line)
}

func benchRange(b *testing.B, bucket object.Bucket, v schema.ObjectVersion, size int) {
	b.Helper()
	const workers = 16
	b.SetBytes(int64(size))
	b.ReportAllocs()
	var before, after syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &before); err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			buf := make([]byte, size)
			for {
				i := next.Add(1)
				if i > int64(b.N) {
					return
				}
				offset := (i * 7_654_321) % (benchSize - int64(size))
				if err := bucket.Range(b.Context(), "k", v, offset, buf); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &after); err != nil {
		b.Fatal(err)
	}
	took := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
	b.ReportMetric(float64(took)/1e3/float64(b.N), "cpu-us/op")
}
