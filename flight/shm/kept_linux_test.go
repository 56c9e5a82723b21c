package shm

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"bowstring/internal/shmtest"
)

// keeps are ways in which a client keeps the memory of a ring that has ended.
var keeps = map[string]func(t *testing.T, g *shmtest.Guest) (blocks func() int64, released func() error){
	"descriptor": func(_ *testing.T, g *shmtest.Guest) (func() int64, func() error) {
		return func() int64 { return blocksOf(int(g.File.Fd())) }, g.File.Close
	},
	"mapping": func(t *testing.T, g *shmtest.Guest) (func() int64, func() error) {
		m, err := unix.Mmap(int(g.File.Fd()), 0, int(g.Bytes), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		_ = g.File.Close()
		return func() int64 { return int64(len(m)) }, func() error { return unix.Munmap(m) }
	},
	// Such a descriptor can neither be read nor mapped, but opened anew.
	"path": func(t *testing.T, g *shmtest.Guest) (func() int64, func() error) {
		fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", g.File.Fd()), unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		_ = g.File.Close()
		return func() int64 { return blocksOf(fd) }, func() error { return unix.Close(fd) }
	},
	// It is under way in a socket, from where anybody may take it later.
	"message": func(t *testing.T, g *shmtest.Guest) (func() int64, func() error) {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Sendmsg(pair[0], []byte("ring"), unix.UnixRights(int(g.File.Fd())), nil, 0); err != nil {
			t.Fatal(err)
		}
		_ = g.File.Close()
		return func() int64 { return g.Bytes }, func() error {
			_ = unix.Close(pair[0])
			return unix.Close(pair[1])
		}
	},
}

func blocksOf(fd int) int64 {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return 0
	}
	return st.Blocks * 512
}

// A client that takes rings, ends them and keeps what it was handed holds so much as its user may and no more, and what
// it holds is counted until the kernel has it back.
func TestMemoryOfEndedRingsCounts(t *testing.T) {
	const ring, most = 1 << 20, 3
	for way, keep := range keeps {
		t.Run(way, func(t *testing.T) {
			s := listen(t, Options{Mode: 0o666, RingBytes: ring, Memory: 2 * most * ring})
			var released []func() error
			held := int64(0)
			for range 4 * most {
				g := visit(t, s)
				if g.Ring == "" {
					continue
				}
				r := s.Ring(g.Ring, "")
				slot, ok, err := r.Reserve(t.Context(), 1, ring/2)
				if err != nil || !ok {
					t.Fatal(ok, err)
				}
				for i := range slot.Bytes() {
					slot.Bytes()[i] = 1
				}
				slot.Sent()
				r.Leave()
				blocks, end := keep(t, g)
				released = append(released, end)
				goAway(t, g)
				held += blocks()
			}
			st := s.Stats()
			if len(released) != most || held > most*ring || held < most*ring/2 {
				t.Errorf("the client holds %d rings with %d bytes, and may have %d", len(released), held, most)
			}
			if st.Rings != 0 || st.Bytes != most*ring || st.Kept != most*ring || st.Refused != 3*most {
				t.Errorf("counted is %+v, want %d rings that are kept", st, most)
			}
			for i, end := range released {
				if err := end(); err != nil {
					t.Fatal(err)
				}
				counted(t, s, int64(most-1-i)*ring)
			}
			if g := visit(t, s); g.Ring == "" {
				t.Errorf("a client that has released everything gets %q", g.Refused)
			}
		})
	}
}

// A ring that could not be handed over is not counted for long.
func TestRingsWithoutTaker(t *testing.T) {
	s := listen(t, Options{RingBytes: 1 << 20, Memory: 1 << 20})
	for range 20 {
		c, err := shmtest.Dial(s.Path())
		if err != nil {
			t.Fatal(err)
		}
		key, nonce := s.Key(""), "00112233445566778899aabbccddeeff"
		if err := shmtest.Say(c, shmtest.Message{Version: Version, Nonce: nonce}); err != nil {
			t.Fatal(err)
		}
		shown, _, err := shmtest.Hear(c)
		if err != nil {
			t.Fatal(err)
		}
		proof := shmtest.Proof(key, clientProves, nonce, shown.Nonce)
		if err := shmtest.Say(c, shmtest.Message{Proof: proof}); err != nil {
			t.Fatal(err)
		}
		_ = c.Close() // it has the ring by now, or has not
		counted(t, s, 0)
	}
	if left := len(s.watch.gone); left != 0 {
		t.Errorf("%d rings are watched that are gone", left)
	}
	if _, err := os.Lstat(s.Path()); err != nil {
		t.Error(err)
	}
}
