package shm

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bowstring/internal/shmtest"
	"bowstring/schema"
)

func listen(t *testing.T, opts Options) *Server {
	t.Helper()
	opts.Path = filepath.Join(t.TempDir(), "s")
	opts.Logger = slog.New(slog.DiscardHandler)
	s, err := Listen(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		counted(t, s, 0) // clients have released everything by now
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(opts.Path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket is left: %v", err)
		}
	})
	return s
}

// visit connects as a client without a name.
func visit(t *testing.T, s *Server) *shmtest.Guest {
	t.Helper()
	g, err := shmtest.Visit(s.Path(), "", s.Key(""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	return g
}

// goAway ends a client's socket, and waits until the server has noticed: it closes its end last.
func goAway(t *testing.T, g *shmtest.Guest) {
	t.Helper()
	if err := g.Conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	for n := 1; n > 0; { // what it was handed
		n, _ = g.Conn.Read(make([]byte, 4096))
	}
}

// released is goAway, and the client keeps no descriptor. It waits until the server counts n bytes.
func released(t *testing.T, s *Server, g *shmtest.Guest, n int64) {
	t.Helper()
	goAway(t, g)
	g.Close()
	counted(t, s, n)
}

// counted waits until the server counts n bytes of rings.
func counted(t *testing.T, s *Server, n int64) {
	t.Helper()
	for end := time.Now().Add(time.Minute); s.Stats().Bytes != n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%+v is counted, want %d bytes", s.Stats(), n)
		}
	}
}

// A client sees what the server writes, and can do nothing else with what it was given:
// not write, not change its size, not take the seals off.
func TestClientCanOnlyRead(t *testing.T) {
	s := listen(t, Options{RingBytes: 1 << 20})
	g := visit(t, s)
	if g.Bytes != 1<<20 || g.File == nil {
		t.Fatalf("the client has %+v", g)
	}
	fd := int(g.File.Fd())
	r := s.Ring(g.Ring, "")
	if r == nil {
		t.Fatal("the server does not know the ring that it gave")
	}
	slot, ok, err := r.Reserve(t.Context(), 1, 100)
	if err != nil || !ok {
		t.Fatal(err)
	}
	copy(slot.Bytes(), "bytes")
	seen, err := unix.Mmap(fd, 0, 1<<20, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(seen) }()
	if got := string(seen[slot.Offset:][:5]); got != "bytes" {
		t.Errorf("the client reads %q", got)
	}
	if m, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		_ = unix.Munmap(m)
		t.Error("the client can map the ring for writing")
	}
	if _, err := unix.Pwrite(fd, []byte("x"), 0); err == nil {
		t.Error("the client can write to the ring's file")
	}
	if err := unix.Mprotect(seen, unix.PROT_READ|unix.PROT_WRITE); err == nil {
		t.Error("the client can make its mapping writable")
	}
	for name, err := range map[string]error{
		"shrink": unix.Ftruncate(fd, 0), "grow": unix.Ftruncate(fd, 2<<20),
		"punch": unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096),
	} {
		if err == nil {
			t.Errorf("the client can %s the ring", name)
		}
	}
	if f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), os.O_RDWR, 0); err == nil {
		if _, err := f.WriteAt([]byte("x"), 0); err == nil {
			t.Error("the client can open the ring anew and write")
		}
		_ = f.Close()
	}
	// It goes while the call is under way: the memory stays until the call leaves it.
	goAway(t, g)
	if s.Ring(g.Ring, "") != nil {
		t.Error("a ring whose client is gone is given again")
	}
	copy(slot.Bytes(), "still mapped")
	slot.Sent()
	if s.memory.Load() == 0 {
		t.Error("the ring's memory was given back under a call")
	}
	r.Leave()
	if got := string(seen[slot.Offset:][:5]); got != "still" {
		t.Errorf("what the client has mapped says %q after the ring's end", got)
	}
	if st := s.Stats(); st.Bytes != 1<<20 || st.Kept != 1<<20 || st.Rings != 0 {
		t.Errorf("the client has a ring that has ended; %+v", st)
	}
}

// Memory is bounded, and is free again after a client's end. A client without a ring gets
// the reason.
func TestMemoryIsBounded(t *testing.T) {
	s := listen(t, Options{RingBytes: 1 << 20, Memory: 2 << 20})
	one, two, three := visit(t, s), visit(t, s), visit(t, s)
	if two.Ring == "" || three.Ring != "" || three.File != nil || three.Refused == "" {
		t.Errorf("the third client got %+v", three)
	}
	if n := s.Stats().Refused; n != 1 {
		t.Errorf("%d clients were refused", n)
	}
	released(t, s, one, 1<<20)
	if four := visit(t, s); four.Ring == "" {
		t.Errorf("after one is gone the next gets %+v", four)
	}
}

// Users without permission get an error.
func TestUsers(t *testing.T) {
	me := uint32(os.Getuid())
	if g := visit(t, listen(t, Options{UIDs: []uint32{me + 1}})); g.Ring != "" || g.Refused == "" {
		t.Errorf("a user without permission got %+v", g)
	}
	if g := visit(t, listen(t, Options{UIDs: []uint32{me + 1, me}})); g.Ring == "" {
		t.Errorf("a user with permission got %+v", g)
	}
}

// A socket that a dead server left is taken over, one of a live server is not, and a file is left alone.
func TestStaleSocket(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	opts := Options{Path: path, Logger: slog.New(slog.DiscardHandler)}
	if _, err := Listen(opts); !errors.Is(err, schema.ErrExists) {
		t.Errorf("beside a live server: %v", err)
	}
	_ = l.Close()
	s, err := Listen(opts)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket's rights are %v: %v", info.Mode(), err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(opts); !errors.Is(err, schema.ErrInvalid) {
		t.Errorf("in place of a file: %v", err)
	}
}

// Two clients have one ring for each connection, and their reports affect their own rings
// only. A report that is cut off or of an unknown kind ends the ring of its client, not
// the other's.
func TestClientsThatLie(t *testing.T) {
	s := listen(t, Options{RingBytes: 1 << 20})
	r := s.Ring(visit(t, s).Ring, "")
	if r == nil {
		t.Fatal("the server does not know the ring that it gave")
	}
	defer r.Leave()
	slot, _, err := r.Reserve(t.Context(), 1, 1<<16)
	if err != nil {
		t.Fatal(err)
	}
	slot.Sent()
	many := make([]byte, 0, record*maxRecords)
	for i := range maxRecords {
		many = append(append(many, byte(1+i%3), 0, 0, 0, 0, 0, 0, 0), make([]byte, 8)...)
		many[len(many)-8] = byte(i)
	}
	for _, last := range [][]byte{{1}, make([]byte, record), many[:record*3/2]} {
		g := visit(t, s)
		for _, b := range [][]byte{many, many, last} {
			if _, err := g.Conn.Write(b); err != nil {
				t.Fatal(err)
			}
		}
		if n, err := g.Conn.Read(make([]byte, 1)); n > 0 || err == nil {
			t.Errorf("after % x the server says %d bytes: %v", last, n, err)
		}
		if s.Ring(g.Ring, "") != nil {
			t.Error("the ring of a client that was sent away is given")
		}
	}
	if st := s.Stats(); st.Rings != 1 || st.Held != 1<<16 {
		t.Errorf("%d rings are left with %d bytes held, want the other client's", st.Rings, st.Held)
	}
}

// Clients that come and go, many times and at once, leave nothing behind.
func TestClientsComeAndGo(t *testing.T) {
	s := listen(t, Options{RingBytes: 1 << 20, Memory: 4 << 20})
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for i := range 100 {
				if i%2 == 0 {
					g, err := shmtest.Visit(s.Path(), "", s.Key(""))
					if err != nil {
						t.Error(err)
						return
					}
					g.Close()
					continue
				}
				c, err := shmtest.Dial(s.Path())
				if err != nil {
					t.Error(err)
					return
				}
				_ = c.CloseWrite() // goes before it is greeted, or after
				for n := 1; n > 0; {
					n, _ = c.Read(make([]byte, 4096))
				}
				_ = c.Close()
			}
		})
	}
	clients.Wait()
	counted(t, s, 0)
	if st := s.Stats(); st.Rings != 0 || st.Given+st.Refused == 0 || len(s.greeted) != 0 {
		t.Errorf("after all have gone: %+v, and %v are greeted", st, s.greeted)
	}
}

// A name is as long as the socket can have it, with the suffix that it has first.
func TestLongestPath(t *testing.T) {
	dir := t.TempDir()
	o := Options{Path: filepath.Join(dir, "s")}
	o.EnsureDefaults()
	o.Path += strings.Repeat("s", maxName-len(o.hidden()))
	o.Logger = slog.New(slog.DiscardHandler)
	s, err := Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	o.Path += "s"
	if _, err := Listen(o); !errors.Is(err, schema.ErrInvalid) {
		t.Errorf("a name that is too long: %v", err)
	}
}

// One user has so much and no more, and has it again when a client of his has gone.
func TestUserMemoryIsBounded(t *testing.T) {
	s := listen(t, Options{Mode: 0o666, RingBytes: 1 << 20, Memory: 4 << 20})
	one, two := visit(t, s), visit(t, s)
	if three := visit(t, s); two.Ring == "" || three.Ring != "" || three.File != nil ||
		!strings.Contains(three.Refused, fmt.Sprintf("user %d", os.Getuid())) {
		t.Errorf("the third client of a user got %+v", three)
	}
	released(t, s, one, 1<<20)
	if four := visit(t, s); four.Ring == "" {
		t.Errorf("after one is gone the next gets %+v", four)
	}
}

// A client that is silent while a batch waits loses its ring: the batch goes by TCP, no
// slot is written again, and the client sees the end of the socket. The server still
// handles its later reports.
func TestLease(t *testing.T) {
	s := listen(t, Options{RingBytes: 1 << 20, Lease: 20 * time.Millisecond})
	g := visit(t, s)
	c := g.Conn
	seen, err := unix.Mmap(int(g.File.Fd()), 0, 1<<20, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(seen) }()
	r := s.Ring(g.Ring, "")
	if r == nil {
		t.Fatal("the server does not know the ring that it gave")
	}
	defer r.Leave()
	for i := range 2 {
		slot, ok, err := r.Reserve(t.Context(), 1, 1<<19)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		slot.Bytes()[0] = byte(1 + i)
		slot.Sent()
	}
	if _, ok, err := r.Reserve(t.Context(), 1, 1<<19); ok || err != nil {
		t.Errorf("a batch that waited: %t, %v; want it to go by TCP", ok, err)
	}
	if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Errorf("the client reads %d bytes: %v", n, err)
	}
	if s.Ring(g.Ring, "") != nil {
		t.Error("an abandoned ring is given to another call")
	}
	if st := s.Stats(); st.Abandoned != 1 || st.Bytes != 1<<20 || st.Held != 1<<20 {
		t.Errorf("%+v", st)
	}
	if seen[0] != 1 || seen[1<<19] != 2 {
		t.Error("a slot was written that the client may read")
	}
	b := make([]byte, record)
	b[0], b[8] = saysReleased, 1
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for s.Stats().Rings != 0 { // until the server has noticed
		runtime.Gosched()
	}
	if st := s.Stats(); st.Abandoned != 1 || st.Sent != 1<<20 {
		t.Errorf("after the client has gone: %+v", st)
	}
}
