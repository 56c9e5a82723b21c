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
	// Version is the version of the socket's protocol. Both ends refuse another one.
	Version = 2
	// record is the length in bytes of a client's report about one slot or call: one byte
	// of kind, seven unused, and the number as a little-endian uint64.
	record = 16
	// maxRecords bounds the records of a message.
	maxRecords = 256

	// Kinds of records.
	saysTaken    = 1
	saysReleased = 2
	saysEnded    = 3
)

// Server hands rings to clients on its machine. It is safe for concurrent use. Each
// client has a goroutine, which reads its reports. Its connection owns the ring.
type Server struct {
	opts     Options
	name     string   // random; a client compares it with the name that it got by Flight
	secret   [32]byte // callers' keys are derived from it
	listener *net.UnixListener
	running  sync.WaitGroup // the acceptor, a goroutine for each client, and the watch
	watch    *watch         // of the memory of rings
	memory   atomic.Int64   // bytes of rings that any process still has; grows under counting only

	pinned   *pinned          // bytes of blobs that the slots of all rings refer to
	counting sync.Mutex       // taken after a ring's mutex; no other mutex is taken under it
	users    map[uint32]int64 // bytes of rings by user, without zeros; guarded by counting

	mu     sync.Mutex
	rings  map[string]*Ring
	conns  map[*net.UnixConn]struct{}
	closed bool
	// greeted counts the clients in the handshake by user, without zeros.
	greeted map[uint32]int
	given   int64 // rings ever handed out
	gone    Stats // counters of closed rings
}

// Stats are gauges and counters of a Server.
type Stats struct {
	Rings   int   `json:"rings"`   // that clients have now
	Bytes   int64 `json:"bytes"`   // of rings, until the kernel has freed their memory
	Kept    int64 `json:"kept"`    // of Bytes, those of ended rings that a client or a call still has
	Held    int64 `json:"held"`    // of Bytes, those in slots that are not free
	Given   int64 `json:"given"`   // rings ever
	Sent    int64 `json:"sent"`    // bytes ever sent by rings
	Waits   int64 `json:"waits"`   // batches that waited for room
	Inline  int64 `json:"inline"`  // batches sent by TCP for lack of room
	Refused int64 `json:"refused"` // clients that got no ring
	// Abandoned counts rings whose clients were silent for a lease while a batch waited.
	Abandoned int64 `json:"abandoned"`

	Pinned   int64 `json:"pinned"`   // bytes of blobs that slots refer to now
	Referred int64 `json:"referred"` // bytes ever referred to instead of being sent
	Copied   int64 `json:"copied"`   // batches copied because too much was pinned or a file could not be shared
}

// Listen creates the socket and serves it until Close. It replaces a socket that no
// server listens on; it returns schema.ErrExists if a server does, and schema.ErrInvalid
// if the file is no socket.
func Listen(opts Options) (*Server, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	if err := removeStale(opts.Path); err != nil {
		return nil, err
	}
	opts.warnOfFolder()
	// The socket gets its mode before any client can connect: it is created under a
	// hidden name and renamed.
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

// warnOfFolder warns if other users can replace the socket because its folder is writable
// for them. Clients detect a replaced socket and are served by TCP, so this is no error.
func (o *Options) warnOfFolder() {
	folder := filepath.Dir(o.Path)
	if info, err := os.Stat(folder); err == nil && info.Mode()&0o022 != 0 && info.Mode()&os.ModeSticky == 0 {
		o.Logger.Warn("other users can replace the socket by which clients on this node get shared memory: they may "+
			"write to its folder", "folder", folder, "mode", info.Mode().Perm().String())
	}
}

// removeStale removes a socket without a listener, which a killed server leaves behind.
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

// Name returns this server's random name, which it announces by the socket and by Flight.
func (s *Server) Name() string { return s.name }

// Path returns the path of the socket.
func (s *Server) Path() string { return s.opts.Path }

// Ring returns a ring for a call, which calls Leave at its end. It returns nil if there
// is no such ring, or if it was given to another caller.
func (s *Server) Ring(id, caller string) *Ring {
	s.mu.Lock()
	r := s.rings[id]
	s.mu.Unlock()
	if r == nil || r.caller != caller || !r.enter() {
		return nil
	}
	return r
}

// Stats returns the current counters.
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

// addTo adds the ring's counters to t, for Stats and for the counters of closed rings.
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

// Close ends all rings and waits for the server's goroutines. Calls keep the memory of
// their ring until they leave, and clients keep their mappings. Blobs that rings refer to
// are unpinned although clients may still read them: call Close after everything that
// could evict them has ended.
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
			time.Sleep(50 * time.Millisecond) // probably out of file descriptors: wait, or the loop would take a core
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

// serve does the handshake with a client, hands it a ring, and handles its reports until
// the connection ends.
func (s *Server) serve(c *net.UnixConn) {
	defer func() {
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		_ = c.Close() // last: when the client sees the end, its memory is released
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
				s.opts.Logger.Warn("a client on this node is silent while a batch waits for room in its shared "+
					"memory; it gets what follows by TCP", "uid", uid, "lease", s.opts.Lease)
				_ = c.CloseWrite() // the client's next stream then requests another ring
			}
			continue
		}
		if err != nil || n == 0 {
			return
		}
		if !r.hear(buf[:n]) {
			s.opts.Logger.Warn("a client on this node sends invalid reports; its ring ends",
				"bytes", n)
			return
		}
	}
}

// hear handles the reports of a message. It returns false if the message is malformed.
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
