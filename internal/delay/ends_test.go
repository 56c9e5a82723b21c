package delay_test

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bowstring/internal/delay"
)

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
		// The server is gone: the first write finds that out, a later one gets the error.
		write(t, client, 1)
		time.Sleep(rtt) // fake
		synctest.Wait()
		_, err = client.Write([]byte("x"))
		equal(t, "write to a closed end", errors.Is(err, io.ErrClosedPipe), true)
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
