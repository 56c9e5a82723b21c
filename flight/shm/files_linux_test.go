package shm

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bowstring/internal/shmtest"
)

// handedOver reads the next thing that the server hands over, and its descriptor.
func handedOver(t *testing.T, c *net.UnixConn) (h handed, fd int) {
	t.Helper()
	said, rights := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	n, rn, _, _, err := c.ReadMsgUnix(said, rights)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(said[:n], &h); err != nil {
		t.Fatalf("%s: %v", said[:n], err)
	}
	messages, err := unix.ParseSocketControlMessage(rights[:rn])
	if err != nil || len(messages) != 1 {
		t.Fatalf("%d control messages: %v", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		t.Fatalf("%d descriptors: %v", len(fds), err)
	}
	t.Cleanup(func() { _ = unix.Close(fds[0]) })
	return h, fds[0]
}

// aFile is a file with a content, open for writing.
func aFile(t *testing.T, content string) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if _, err := f.WriteString(content); err != nil {
		t.Fatal(err)
	}
	return f
}

// isLocked reports whether somebody has what was handed out of a file.
func isLocked(t *testing.T, f *os.File) bool {
	t.Helper()
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_UN)
		if err != nil {
			t.Fatal(err)
		}
		return false
	}
	if !errors.Is(err, unix.EWOULDBLOCK) {
		t.Fatal(err)
	}
	return true
}

func referring(t *testing.T) (s *Server, g *shmtest.Guest, r *Ring) {
	t.Helper()
	s = listen(t, Options{RingBytes: 1 << 20, References: true})
	g = visit(t, s)
	if r = s.Ring(g.Ring, ""); r == nil {
		t.Fatal("the server does not know the ring that it gave")
	}
	return s, g, r
}

func slotOf(t *testing.T, r *Ring) *Slot {
	t.Helper()
	slot, ok, err := r.ReserveReferring(t.Context(), 1, 64, 1)
	if err != nil || !ok {
		t.Fatalf("no slot: %v", err)
	}
	return slot
}

// A client can read a file that it was handed, and no other, also after the file has lost its name. The file is handed
// over once for all slots. As long as the client has it mapped, the lock shows that.
func TestFilesCanOnlyBeRead(t *testing.T) {
	_, g, r := referring(t)
	defer r.Leave()
	f := aFile(t, "content of a segment")
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		slot := slotOf(t, r)
		for range 2 {
			if number, ok := slot.Refer(f, 4096); !ok || number != 1 {
				t.Fatalf("the file is %d, %t", number, ok)
			}
		}
		slot.Sent()
	}
	h, fd := handedOver(t, g.Conn)
	if h.File != 1 || h.Bytes != 4096 || len(h.Forget) != 0 {
		t.Errorf("the client got %+v", h)
	}
	if n := r.files[0].slots; n != 3 {
		t.Errorf("%d slots refer to the file, want 3", n)
	}
	seen, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(seen[:7]); got != "content" {
		t.Errorf("the client reads %q", got)
	}
	if m, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		_ = unix.Munmap(m)
		t.Error("the client can map the file for writing")
	}
	if err := unix.Mprotect(seen, unix.PROT_READ|unix.PROT_WRITE); err == nil {
		t.Error("the client can make its mapping writable")
	}
	_, writing := unix.Pwrite(fd, []byte("x"), 0)
	for name, err := range map[string]error{"write": writing, "cut": unix.Ftruncate(fd, 0)} {
		if err == nil {
			t.Errorf("the client can %s the file", name)
		}
	}
	_ = unix.Close(fd)
	if !isLocked(t, f) {
		t.Error("the lock does not show that a client has the file mapped")
	}
	if err := unix.Munmap(seen); err != nil {
		t.Fatal(err)
	}
	if isLocked(t, f) {
		t.Error("the file is taken for one that a client has, when none has")
	}
}

// A client is handed files for as long as it is there, long after the time that it had to take its ring.
func TestFilesAreHandedOverLate(t *testing.T) {
	_, g, r := referring(t)
	defer r.Leave()
	if err := r.conn.SetWriteDeadline(time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	slot := slotOf(t, r)
	defer slot.Drop()
	if _, ok := slot.Refer(aFile(t, ""), 1); !ok {
		t.Fatal("the file cannot be had")
	}
	h, fd := handedOver(t, g.Conn)
	_ = unix.Close(fd)
	if h.File != 1 {
		t.Errorf("the client got %+v", h)
	}
}

// A client that does not read its socket blocks no stream: its batches are copied.
func TestWhoTakesNothingGetsNoMore(t *testing.T) {
	_, g, r := referring(t)
	slot := slotOf(t, r)
	n := 0
	for ; n < 10*maxFiles; n++ {
		if _, ok := slot.Refer(aFile(t, ""), 1); !ok {
			break
		}
	}
	if n > maxFiles {
		t.Errorf("%d files were handed over, want %d at most", n, maxFiles)
	}
	if r.copied != 1 {
		t.Errorf("%d batches are said to be copied, want 1", r.copied)
	}
	slot.Drop()
	r.Leave()
	goAway(t, g)
	if _, ok := (&Slot{ring: r}).Refer(aFile(t, ""), 1); ok {
		t.Error("a client that is gone was handed a file")
	}
}

// The server forgets files that are gone when it hands over another, except those that a
// slot refers to.
func TestFilesAreForgotten(t *testing.T) {
	_, g, r := referring(t)
	defer r.Leave()
	kept, done := slotOf(t, r), slotOf(t, r)
	names := map[string]*os.File{}
	for _, name := range []string{"kept", "gone", "closed", "there"} {
		f := aFile(t, name)
		names[name] = f
		slot := done
		if name == "kept" {
			slot = kept
		}
		if _, ok := slot.Refer(f, 1); !ok {
			t.Fatalf("%s cannot be handed over", name)
		}
		handedOver(t, g.Conn)
		if name != "there" && name != "closed" {
			if err := os.Remove(f.Name()); err != nil {
				t.Fatal(err)
			}
		}
	}
	done.Drop()
	_ = names["closed"].Close()
	if _, ok := kept.Refer(aFile(t, ""), 1); !ok {
		t.Fatal("no more files")
	}
	h, _ := handedOver(t, g.Conn)
	if h.File != 5 || !slices.Equal(h.Forget, []uint64{2, 3}) {
		t.Errorf("the client got %+v, want that 2 and 3 are gone", h)
	}
	kept.Drop()
	if _, ok := slotOf(t, r).Refer(aFile(t, ""), 1); !ok {
		t.Fatal("no more files")
	}
	if h, _ := handedOver(t, g.Conn); !slices.Equal(h.Forget, []uint64{1}) {
		t.Errorf("the client got %+v, want that 1 is gone", h)
	}
}

// A client can release only its own slots, and gets only files that its slots refer to,
// whatever it sends.
func TestClientsThatLieAboutReferences(t *testing.T) {
	s, g, r := referring(t)
	defer r.Leave()
	slot := slotOf(t, r)
	f := aFile(t, "mine")
	if _, ok := slot.Refer(f, 1); !ok {
		t.Fatal("no file")
	}
	slot.Sent()
	liar := visit(t, s)
	var lies []byte
	for kind := byte(saysTaken); kind <= saysEnded; kind++ {
		for number := range uint64(80) {
			lies = binary.LittleEndian.AppendUint64(append(lies, kind, 0, 0, 0, 0, 0, 0, 0), number)
		}
	}
	for range 2 {
		if _, err := liar.Conn.Write(lies); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := liar.Conn.Write(make([]byte, record)); err != nil { // no kind: there is nothing that asks for a file
		t.Fatal(err)
	}
	if n, err := liar.Conn.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Errorf("the server says %d bytes to a client that requests a file: %v", n, err)
	}
	if s.Ring(liar.Ring, "") != nil {
		t.Error("the ring of a client that was sent away is given")
	}
	if st := s.Stats(); st.Pinned != 1 || st.Referred != 1 {
		t.Errorf("%+v: want the other client's reference", st)
	}
	goAway(t, g)
	if st := s.Stats(); st.Pinned != 0 {
		t.Errorf("%d bytes are pinned after the client's end", st.Pinned)
	}
}

// Bounds that make no sense are refused by name.
func TestPinnedOptions(t *testing.T) {
	o := Options{Path: "/s", References: true, AllPinnedBytes: 10, PinnedBytes: 11}
	o.EnsureDefaults()
	if err := o.Validate(); err == nil {
		t.Error("a stream may have more pinned than all")
	}
	o = Options{Path: "/s", AllPinnedBytes: 10}
	o.EnsureDefaults()
	if o.PinnedBytes != 0 || o.AllPinnedBytes != 0 {
		t.Error(fmt.Sprint("without references there are pins: ", o))
	}
}
