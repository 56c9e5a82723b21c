package command

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"bowstring/flight"
	"bowstring/schema"
)

// unixScheme begins the address of a server that is reached by a Unix socket:
// grpc+unix:///PATH.
const unixScheme = "grpc+unix://"

// socketPath returns the path of a grpc+unix address. ok is false for another address,
// and for a relative path, which would depend on the working directory.
func socketPath(address string) (path string, ok bool) {
	path, ok = strings.CutPrefix(address, unixScheme)
	return path, ok && filepath.IsAbs(path)
}

// madeSuffix ends the temporary name of a socket. See listenSocket.
const madeSuffix = ".new"

// checkListen checks --listen. Linux limits a socket's path to 107 bytes, and a longer
// one would fail with "invalid argument" only.
func (c *ServeCmd) checkListen() error {
	path, isSocket := socketPath(c.Listen)
	if isSocket {
		if most := len(unix.RawSockaddrUnix{}.Path) - 1 - len(madeSuffix); len(path) > most {
			return fmt.Errorf("--listen: the path %s has %d bytes, a socket's may have %d", path, len(path), most)
		}
		if c.TLSCert != "" {
			return errors.New("--listen: no connection to a socket of this machine is encrypted; leave out --tls-cert")
		}
		return nil
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return fmt.Errorf("--listen: got %q, want HOST:PORT, or grpc+unix:///PATH", c.Listen)
	}
	return nil
}

// listen listens at the address of --listen. The lock of a socket is held until the
// server has ended.
func (s *running) listen(ctx context.Context) (net.Listener, error) {
	if path, isSocket := socketPath(s.Listen); isSocket {
		l, lock, err := listenSocket(ctx, path)
		if err != nil {
			return nil, fmt.Errorf("cannot listen on %s: %w", path, err)
		}
		s.opened = append(s.opened, lock.Close)
		return l, nil
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", s.Listen)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w; --listen names another address, port 0 any free one", s.Listen, err)
	}
	return l, nil
}

// socketListener removes its socket when it is closed. net.UnixListener would remove the
// temporary name under which the socket was made.
type socketListener struct {
	*net.UnixListener
	path string
}

// Addr implements net.Listener.
func (l *socketListener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// Close implements net.Listener.
func (l *socketListener) Close() error {
	err := os.Remove(l.path)
	if errors.Is(err, fs.ErrNotExist) { // a second Close
		err = nil
	}
	return errors.Join(err, l.UnixListener.Close())
}

// lockWithin is how long a server tries to lock its socket. A client that checks whether
// a server runs holds the lock for a moment.
const lockWithin = time.Second

// listenSocket listens on a socket that only the server's user can connect to. A lock
// file next to it, which the kernel releases when the process ends, prevents two servers
// on one socket. A socket whose lock is free was therefore left by a killed process.
func listenSocket(ctx context.Context, path string) (_ net.Listener, lock *os.File, err error) {
	if lock, err = os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.Close())
		}
	}()
	for end := time.Now().Add(lockWithin); ; sleep(ctx, lockWithin/100) {
		err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return nil, nil, fmt.Errorf("%w: another server has %s (%w)", schema.ErrExists, lock.Name(), err)
		}
	}
	made := path + madeSuffix
	// Rename would replace a file of the user without a question.
	for _, name := range []string{path, made} {
		if info, err := os.Lstat(name); err == nil && info.Mode()&fs.ModeSocket == 0 {
			return nil, nil, fmt.Errorf("%w: %s is something else than a socket", schema.ErrInvalid, name)
		}
	}
	// The socket gets its final name last: until then a client finds no socket, or that of
	// a killed server.
	if err := os.Remove(made); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	l, err := listenPrivate(ctx, made)
	if err != nil {
		return nil, nil, err
	}
	socket := &socketListener{l, path}
	socket.SetUnlinkOnClose(false)
	if err := os.Rename(made, path); err != nil {
		return nil, nil, errors.Join(err, socket.UnixListener.Close(), os.Remove(made))
	}
	return socket, lock, nil
}

// listenPrivate makes a socket that other users cannot connect to. Its mode is set before
// it has a name, as bind takes the mode of the descriptor: between bind and chmod another
// user could connect. A umask would hold for the whole process.
func listenPrivate(ctx context.Context, path string) (*net.UnixListener, error) {
	var mode error
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return errors.Join(c.Control(func(fd uintptr) { mode = unix.Fchmod(int(fd), 0o600) }), mode)
	}}
	l, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}

// uriOf returns the address by which a client on this machine reaches a listener.
func uriOf(addr net.Addr, encrypted bool) string {
	switch {
	case addr.Network() == "unix":
		return unixScheme + addr.String()
	case encrypted:
		return "grpc+tls://" + dialable(addr.String())
	}
	return "grpc://" + dialable(addr.String())
}

// dialable returns an address to which a client on this machine can connect. A listener
// on all addresses is reached by the loopback address.
func dialable(listens string) string {
	host, port, err := net.SplitHostPort(listens)
	if err != nil {
		return listens // a socket's path
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return listens
}

// untilIdle waits until no client has been connected for the time quiet. It returns false
// if ctx ends first. A connection that came and went between two checks counts too,
// because the activity has a counter.
func untilIdle(ctx context.Context, quiet time.Duration, activity func() flight.Activity) bool {
	// 20 checks in the time make it at most 5 % longer.
	tick := time.NewTicker(max(quiet/20, time.Millisecond))
	defer tick.Stop()
	last, since := activity(), time.Now()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
		now := activity()
		if now.Open > 0 || now != last {
			last, since = now, time.Now()
		} else if time.Since(since) >= quiet {
			return true
		}
	}
}
