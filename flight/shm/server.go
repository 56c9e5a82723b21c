package shm

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"bowstring/schema"
)

const (
	// Version is that of what is said by the socket.
	Version = 2
	// record is the length of what a client says, by the socket, about one slot or call.
	record = 16
	// maxRecords is how many a message may have.
	maxRecords = 256

	// What a record says.
	saysTaken    = 1
	saysReleased = 2
	saysEnded    = 3
)

// Server gives rings to clients on this node. It is safe for concurrent use.
type Server struct {
	opts     Options
	name     string   // of this server, so that a client knows which one it has found
	secret   [32]byte // that callers' keys are made of
	listener *net.UnixListener
	running  sync.WaitGroup // the acceptor, a goroutine for each client, and the watch
	watch    *watch         // of the memory of rings
	memory   atomic.Int64   // of rings, in bytes, as long as any process has it; grows under counting

	pinned   *pinned          // of all rings
	counting sync.Mutex       // after a ring's mutex, and with none after it
	users    map[uint32]int64 // bytes of rings by user, none of who has none; guarded by counting

	mu     sync.Mutex
	rings  map[string]*Ring
	conns  map[*net.UnixConn]struct{}
	closed bool
	// greeted are clients that have yet to prove who they are, by user, none of which has none.
	greeted map[uint32]int
	given   int64 // rings that ever were given
	gone    Stats // what was counted by rings that are closed
}

// Stats says what there is and what ever was.
type Stats struct {
	Rings   int   `json:"rings"`   // that clients have
	Bytes   int64 `json:"bytes"`   // that rings take, from the ring's beginning until the kernel has its memory back
	Kept    int64 `json:"kept"`    // of those, of rings that have ended: a client, or a call, has not let go yet
	Held    int64 `json:"held"`    // of those, in slots that are not free
	Given   int64 `json:"given"`   // rings ever
	Sent    int64 `json:"sent"`    // bytes that ever went by a ring
	Waits   int64 `json:"waits"`   // times that a batch waited for room
	Inline  int64 `json:"inline"`  // batches that went by TCP as there was none
	Refused int64 `json:"refused"` // clients that got no ring
	// Abandoned is how many rings ever were, as their clients said nothing while a batch waited.
	Abandoned int64 `json:"abandoned"`

	Pinned   int64 `json:"pinned"`   // bytes of blobs that slots refer to
	Referred int64 `json:"referred"` // bytes ever that were referred to, and not sent by a ring
	Copied   int64 `json:"copied"`   // batches that were copied: too much was pinned, or a file could not be had
}

// Listen makes the socket and serves it until Close.
func Listen(opts Options) (*Server, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	if err := removeStale(opts.Path); err != nil {
		return nil, err
	}
	opts.warnOfFolder()
	// The file has the right mode before anybody can connect: it is renamed into place.
	hidden := opts.hidden()
	_ = os.Remove(hidden)
	w, err := newWatch()
	if err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: hidden, Net: "unixpacket"})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot listen on %s: %w", opts.Path, err), w.close())
	}
	l.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(hidden, opts.Mode), os.Rename(hidden, opts.Path)); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot listen on %s: %w", opts.Path, err), l.Close(), os.Remove(hidden),
			w.close())
	}
	s := &Server{opts: opts, name: newName(), listener: l, watch: w, users: map[uint32]int64{},
		rings: map[string]*Ring{}, greeted: map[uint32]int{}, conns: map[*net.UnixConn]struct{}{},
		pinned: &pinned{most: opts.AllPinnedBytes}}
	_, _ = rand.Read(s.secret[:]) // never fails
	s.running.Go(s.accept)
	s.running.Go(func() { w.run(opts.Logger) })
	return s, nil
}

// warnOfFolder tells the operator of a folder in which others can put a program of theirs in the socket's place. Clients
// find that out, and are served by TCP.
func (o *Options) warnOfFolder() {
	folder := filepath.Dir(o.Path)
	if info, err := os.Stat(folder); err == nil && info.Mode()&0o022 != 0 && info.Mode()&os.ModeSticky == 0 {
		o.Logger.Warn("other users can replace the socket by which clients on this node get shared memory: they may "+
			"write to its folder", "folder", folder, "mode", info.Mode().Perm().String())
	}
}

// removeStale removes a socket that nobody serves any more.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("socket %s: %w", path, err)
	case info.Mode()&os.ModeSocket == 0:
		return fmt.Errorf("%w: %s is there and no socket; name another path", schema.ErrInvalid, path)
	}
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err == nil {
		uid, err := userOf(c)
		_ = c.Close()
		if err != nil {
			return fmt.Errorf("%w: another server listens on %s", schema.ErrExists, path)
		}
		return fmt.Errorf("%w: another server listens on %s, a program of user %d", schema.ErrExists, path, uid)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("socket %s: %w", path, err)
	}
	return os.Remove(path)
}

// Name is this server's, which it says to clients by the socket and by Flight.
func (s *Server) Name() string { return s.name }

// Path is the socket's.
func (s *Server) Path() string { return s.opts.Path }

// Ring returns the ring of that name for a call, which leaves it in the end; nil if there is none, or if another caller
// was given it.
func (s *Server) Ring(id, caller string) *Ring {
	s.mu.Lock()
	r := s.rings[id]
	s.mu.Unlock()
	if r == nil || r.caller != caller || !r.enter() {
		return nil
	}
	return r
}

// Stats says how things stand.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.gone
	t.Rings, t.Bytes, t.Given = len(s.rings), s.memory.Load(), s.given
	t.Kept = max(t.Bytes-int64(len(s.rings))*s.opts.RingBytes, 0)
	t.Pinned = s.pinned.bytes.Load()
	for _, r := range s.rings {
		r.addTo(&t)
	}
	return t
}

func (r *Ring) addTo(t *Stats) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t.Sent += r.sent
	t.Waits += r.waits
	t.Inline += r.inline
	t.Referred += r.referred
	t.Copied += r.copied
	if r.abandoned {
		t.Abandoned++
	}
	for _, slot := range r.slots {
		t.Held += slot.length
	}
}

// Close ends all rings, and waits until nothing of the server runs. Calls that have a ring
// keep its memory until they leave, and clients what they have mapped. What rings refer to is pinned no more, though clients
// read it still: it comes after whatever could evict it has ended.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	err := errors.Join(s.listener.Close(), os.Remove(s.opts.Path), s.watch.close())
	s.running.Wait()
	return err
}

func (s *Server) accept() {
	for {
		c, err := s.listener.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			s.opts.Logger.Warn("a client on this node could not connect", "error", err)
			time.Sleep(50 * time.Millisecond) // out of files, most likely
			continue
		}
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			_ = c.Close()
			return
		}
		s.conns[c] = struct{}{}
		s.running.Go(func() { s.serve(c) })
		s.mu.Unlock()
	}
}

// serve gives a client its ring and listens to it until it goes.
func (s *Server) serve(c *net.UnixConn) {
	defer func() {
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		_ = c.Close() // last: who waits for it knows that all is given back
	}()
	caller, uid, err := s.greet(c)
	var r *Ring
	if err == nil {
		r, err = s.give(c, caller, uid)
	}
	if err != nil {
		s.opts.Logger.Info("a client on this node gets no shared memory", "error", err)
		return
	}
	defer s.forget(r)
	buf := make([]byte, record*maxRecords)
	for {
		_ = c.SetReadDeadline(time.Now().Add(s.opts.Lease))
		n, err := c.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if r.lapse(s.opts.Lease) {
				s.opts.Logger.Warn("a client on this node says nothing while a batch waits for room in its shared "+
					"memory; it gets what follows by TCP", "uid", uid, "lease", s.opts.Lease)
				_ = c.CloseWrite() // so that its next stream asks for another ring
			}
			continue
		}
		if err != nil || n == 0 {
			return
		}
		if !r.hear(buf[:n]) {
			s.opts.Logger.Warn("a client on this node says what makes no sense; its shared memory is taken back",
				"bytes", n)
			return
		}
	}
}

// hear takes what the client says; false if that cannot be read.
func (r *Ring) hear(b []byte) bool {
	if len(b)%record != 0 {
		return false
	}
	for ; len(b) > 0; b = b[record:] {
		number := binary.LittleEndian.Uint64(b[8:])
		switch b[0] {
		case saysTaken:
			r.take(number)
		case saysReleased:
			r.release(number)
		case saysEnded:
			r.end(number)
		default:
			return false
		}
	}
	return true
}
